//! Sends the replies of connections.

use crate::config::DropReason;
use crate::conn::Conn;
use crate::out::SLICES_MAX;
use crate::serve::Core;
use crate::stats::bump;
use crate::stream::Sent;
use std::io::IoSlice;
use std::time::Instant;

/// Sends waiting replies, as far as the socket takes them.
pub(super) fn send_replies(core: &mut Core, conn: &mut Conn, now: Instant) {
    while !conn.book.out.is_empty() || conn.stream.wants_send() {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let (n, bytes) = conn.book.out.slices(&mut slices);
        if bytes == 0 && !conn.stream.wants_send() {
            core.sent(&mut conn.book, 0);
            continue;
        }
        bump(&core.stats.sends, 1);
        let (sent, full) = match conn.stream.send(&slices[..n]) {
            Sent::Some(sent) => (sent, false),
            Sent::Full(sent) => (sent, true),
            Sent::Lost => {
                conn.doom.get_or_insert(Some(DropReason::ConnectionLost));
                return;
            }
        };
        if sent > 0 {
            core.sent(&mut conn.book, sent);
            conn.taking.count(sent);
            conn.moved_at = now;
        }
        if full {
            conn.send_full = Some(now);
            return;
        }
    }
}
