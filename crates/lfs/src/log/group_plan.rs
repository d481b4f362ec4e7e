//! The places of a group's records, without their bytes. The owner of the records plans them in the
//! hold of the state lock in which it takes them, and counts them as log. The layout follows later,
//! without that lock.
//!
//! Invariant: J14 the layout of a group follows its plan: it opens the same segments, takes as many
//! bytes, and ends at the same offset.
//!
//! No locks: segments come through a callback.

use crate::device::layout::{Layout, NEXT_RECORD_BYTES};
use crate::format::record::{RECORD_ALIGN, RECORD_HEADER_BYTES};
use crate::log::{Head, Pending};
use forebay_base::Result;
use forebay_base::units::round_up;

/// Where a record can begin.
pub(crate) enum Start {
    /// At the head.
    Here,
    /// In the segment of the head, after its header, which has to be written first.
    Begin,
    /// In another segment. `fits`: or at the head.
    Next { fits: bool },
}

/// Where `record` can begin, if the log continues at `offset` in `segment` (group_layout.J13).
pub(crate) fn start_of(
    layout: &Layout,
    segment: Option<u32>,
    offset: u32,
    record: &Pending,
) -> Start {
    match segment {
        None => Start::Next { fits: false },
        Some(_) if offset == 0 => Start::Begin,
        Some(_) => {
            let end = end_of(layout, offset, record, layout.align);
            let fits = end + layout.next_record() <= layout.segment_bytes();
            match fits && record.cut != Some(true) {
                true => Start::Here,
                false => Start::Next { fits },
            }
        }
    }
}

/// The end of a record that begins at `offset`, with padding to a multiple of `align`.
pub(crate) fn end_of(layout: &Layout, offset: u32, record: &Pending, align: u32) -> u64 {
    let mut end = u64::from(offset) + (RECORD_HEADER_BYTES + record.body.len()) as u64;
    let inline = record.payload_bytes();
    if inline > 0 {
        end = round_up(end, layout.block_bytes()) + inline;
    }
    round_up(end, u64::from(align))
}

/// The alignment of the end of a record. `last`: it is the last one of its group.
pub(crate) fn align_of(layout: &Layout, last: bool) -> u32 {
    if last { layout.align } else { RECORD_ALIGN }
}

/// The places of a group.
pub(crate) struct GroupPlan {
    /// The answers to the layout's requests for segments, in order.
    pub segments: Vec<Result<u32>>,
    /// Bytes of the log that the group takes.
    pub bytes: u64,
    /// The segment that is open after the group, and the offset in it.
    pub segment: Option<u32>,
    pub end: u32,
}

impl GroupPlan {
    /// Plans a group of these records from `head` on. If there is no segment for a record, the plan
    /// ends before it, and so does the layout, with an error.
    pub fn of(
        layout: &Layout,
        head: &Head,
        records: &[Pending],
        take: &mut dyn FnMut() -> Result<u32>,
    ) -> Self {
        let (segment, end) = (head.segment, head.offset);
        let mut plan = Self { segments: Vec::new(), bytes: 0, segment, end };
        let mut start = plan.end;
        for (n, record) in records.iter().enumerate() {
            match start_of(layout, plan.segment, plan.end, record) {
                Start::Here => {}
                Start::Begin => (start, plan.end) = (0, layout.first_record()),
                Start::Next { fits } => {
                    let next = take();
                    plan.segments.push(next.clone());
                    match next {
                        Ok(next) => {
                            plan.end_segment(layout);
                            plan.bytes += u64::from(plan.end - start);
                            (start, plan.end) = (0, layout.first_record());
                            plan.segment = Some(next);
                        }
                        Err(_) if fits => {}
                        Err(_) => break,
                    }
                }
            }
            let align = align_of(layout, n + 1 == records.len());
            plan.end = end_of(layout, plan.end, record, align) as u32;
        }
        plan.bytes += u64::from(plan.end - start);
        plan
    }

    /// The record that names the next segment (group_layout.J12).
    fn end_segment(&mut self, layout: &Layout) {
        if self.segment.is_some() {
            let end = u64::from(self.end) + NEXT_RECORD_BYTES;
            self.end = round_up(end, u64::from(layout.align)) as u32;
        }
    }

    /// The segments that the group opens.
    pub fn opened(&self) -> Vec<u32> {
        self.segments.iter().flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::place::{Geometry, Place, Seal};
    use crate::format::record::RecordKind;
    use crate::log::Payload;
    use crate::log::group_layout::Batch;
    use forebay_base::world::split_mix;
    use forebay_base::{Error, ErrorKind};

    fn layout(align: u32) -> Layout {
        let (geometry, seal) = (Geometry::with_segment_shift(16), Seal::new(&[1; 16]));
        Layout { geometry, seal, nonce: [1; 16], data_start: 16384, segments: 9, align }
    }

    /// A record of valid changes, with content of some blocks.
    fn record(layout: &Layout, changes: u64, blocks: u64, cut: Option<bool>) -> Pending {
        let bytes = vec![7; (blocks * layout.block_bytes()) as usize].into();
        let payload = Payload { staged: 0..0, bytes, blocks: Vec::new() };
        let change = crate::format::change::Change::AddOrphan(5);
        let mut body = vec![0; 64 * changes as usize];
        let mut writer = forebay_base::codec::Writer::new("record", &mut body);
        (0..changes).for_each(|_| change.encode_into(&mut writer, &layout.geometry).unwrap());
        let len = writer.position();
        body.truncate(len);
        let mark = changes == 0 && blocks == 0;
        Pending {
            ticket: 0,
            kind: if mark { RecordKind::Mark } else { RecordKind::Changes },
            body,
            changes: changes as u32,
            payloads: if blocks > 0 { vec![payload] } else { Vec::new() },
            runs: Vec::new(),
            grant: Default::default(),
            cut,
        }
    }

    /// The head, the bytes and the error of a layout with these segments.
    fn lay_out(
        layout: &Layout,
        head: Head,
        records: &[Pending],
        segments: Vec<Result<u32>>,
    ) -> (Head, Vec<(Place, usize)>, bool) {
        let mut batch = Batch::new(layout, head, 0, segments);
        let count = records.len();
        let mut add = |(n, record)| batch.add(record, n + 1 == count);
        let is_whole = records.iter().enumerate().all(|one| add(one).is_ok());
        if is_whole {
            batch.finish();
        }
        let writes = batch.writes.iter().map(|(at, bytes)| (*at, bytes.len()));
        (batch.head, writes.collect(), is_whole)
    }

    /// J14: random groups, one after the other, in segments of 64 KiB; some requests for a segment
    /// fail.
    #[test]
    fn j14_layout_follows_plan() {
        let (mut opened, mut refused) = (0, 0);
        for seed in 0..400 {
            let mut rng = seed;
            let mut draw = |below: u64| split_mix(&mut rng) % below;
            let layout = layout([512, 4096][seed as usize % 2]);
            let segment = [None, Some(3)][draw(2) as usize];
            let mut head = Head {
                segment,
                previous: None,
                offset: 0,
                sequence: 1,
                generation: 1,
                predecessor: 0,
            };
            for _ in 0..12 {
                let mut records = Vec::new();
                for _ in 0..draw(9) {
                    let blocks = [0, 0, draw(3)][draw(3) as usize];
                    let cut = [None, None, None, Some(draw(2) == 0)][draw(4) as usize];
                    let changes = if cut.is_some() { 0 } else { draw(40) };
                    let blocks = if cut.is_some() { 0 } else { blocks };
                    records.push(record(&layout, changes, blocks, cut));
                }
                let mut next = 3;
                let mut take = || {
                    next += 1;
                    let full = || Error::new(ErrorKind::NoSpace, "take", "as asked");
                    (draw(8) > 0).then_some(next).ok_or_else(full)
                };
                let plan = GroupPlan::of(&layout, &head, &records, &mut take);
                let (after, writes, is_whole) =
                    lay_out(&layout, head, &records, plan.segments.clone());
                let bytes: usize = writes.iter().map(|(_, len)| len).sum();
                opened += plan.opened().len();
                if !is_whole {
                    // The next group begins in another segment (log.L4).
                    refused += 1;
                    break;
                }
                let planned = (plan.segment, plan.end, plan.bytes);
                assert_eq!((after.segment, after.offset, bytes as u64), planned, "seed {seed}");
                head = after;
            }
        }
        assert!(opened > 100 && refused > 20, "{opened} opened, {refused} refused");
    }
}
