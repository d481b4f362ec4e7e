//! Openings of a volume whose log has taken all free segments, and which end at any write.
//!
//! No locks.

use super::full::{available, file, filled, open, setup, write};
use super::outage::{after_power_loss, failing_writes, unlink};
use crate::Volume;
use crate::checkpoint::How;
use crate::format::usage::Stream;
use crate::space::segment::Segment;
use crate::tests::setup::Setup;
use forebay_base::sim_world::SimWorld;
use forebay_sim::SimDisk;
use forebay_vfs::{FileSystem, Ino, Name, SetAttr};

const UNIT: u64 = 4096;

/// Numbers of names with which an opening has few places for nodes.
const NAMES: [usize; 12] = [256, 260, 264, 268, 272, 276, 280, 284, 288, 292, 296, 300];

/// A volume whose log has taken all free segments.
struct Stuck {
    disk: SimDisk,
    /// Its files, with their sizes.
    made: Vec<(String, u64)>,
    /// Blocks that are available when it is empty.
    empty: u64,
    /// The number of its newest checkpoint.
    number: u64,
    /// Pairs of nodes for which it has places.
    pairs: u64,
}

fn free_pairs(volume: &Volume) -> u64 {
    let state = volume.0.state.lock();
    let room = state.space().nodes().room();
    (1..).take_while(|pairs| room.segments_for(*pairs) == 0).count() as u64
}

/// The log of the volume has all free segments. Its tree has `names` names more, and the log
/// changes `changed` of their inodes.
fn stuck(setup: &Setup, names: usize, changed: usize) -> Stuck {
    let disk = setup.blank();
    let (made, empty, number, pairs) = disk.world().run(async {
        let volume = open(setup, &disk).await.unwrap();
        let empty = available(&volume).await;
        for n in 0..names {
            file(&volume, &format!("name{n}")).await.unwrap();
        }
        let mut made = filled(&volume).await;
        unlink(&volume, &made[0].0).await.unwrap();
        volume.syncfs().await.unwrap();
        made.remove(0);
        // Live data in the open segment, and no dead segment: an opening could take one.
        let live = file(&volume, "live").await.unwrap();
        write(&live, "live", 0, 2 * UNIT).await.unwrap();
        live.sync(false).await.unwrap();
        for _ in 0..3 {
            volume.0.checkpoints.make_and_free(How::Log).await.unwrap();
        }
        let dead = |(_, segment): &(u32, &Segment)| {
            !matches!(segment.stream, Stream::Log | Stream::None) && segment.live_bytes == 0
        };
        let found: Vec<u32> =
            volume.0.state.lock().space().segments().iter().filter(dead).map(|(n, _)| n).collect();
        assert!(found.is_empty(), "{found:?}");
        for n in 0..changed {
            let name = format!("name{}", n * names / changed);
            let ino = volume.lookup(Ino::ROOT, Name::new(name.as_bytes()).unwrap()).await.unwrap();
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            volume.setattr(ino.ino, &set).await.unwrap();
        }
        // As after a failed move: the log moves to another segment, whatever that leaves.
        while volume.0.state.lock().space().segments().free() > 0 {
            {
                let mut ctl = volume.0.log.ctl.lock();
                (ctl.repair, ctl.head.generation) = (true, ctl.head.generation + 1);
            }
            let mark = volume.0.state.lock().append_mark();
            volume.0.commit(mark, false).await.expect("a record of the log");
        }
        (made, empty, volume.0.checkpoints.number(), free_pairs(&volume))
    });
    disk.world().stop();
    Stuck { disk: disk.power_cut(1), made, empty, number, pairs }
}

/// Opens the volume for writing, and ends the opening at write `n`. None: it has fewer writes.
fn cut(setup: &Setup, disk: &SimDisk, n: u64) -> Option<SimDisk> {
    let disk = disk.in_world(SimWorld::new(7));
    disk.inject(failing_writes().nth(n));
    let opened = disk.world().run(async { open(setup, &disk).await.map(drop) });
    disk.world().stop();
    opened.is_err().then(|| disk.power_cut(n))
}

/// open.O15: a volume whose log has taken all free segments opens for writing.
#[test]
fn o15_volume_whose_log_has_all_segments_opens_for_writing() {
    let setup = setup(0);
    let Stuck { disk: stuck, made, empty, number, .. } = stuck(&setup, 0, 0);
    after_power_loss(&setup, &stuck, &made, empty);
    // The opening ends at any of its writes.
    for n in 1.. {
        let Some(cut) = cut(&setup, &stuck, n) else {
            assert!(n > 5, "O15: {n} writes");
            break;
        };
        after_power_loss(&setup, &cut, &made, empty);
    }
    let disk = stuck.in_world(SimWorld::new(7));
    let opened =
        disk.world().run(async { open(&setup, &disk).await.unwrap().0.checkpoints.number() });
    disk.world().stop();
    assert!(opened >= number + 3, "O15: {opened} after {number}");
}

/// Whether the volume opens for writing.
fn opens(setup: &Setup, disk: &SimDisk) -> bool {
    let disk = disk.in_world(SimWorld::new(8));
    let opened = disk.world().run(async { open(setup, &disk).await.map(drop) });
    disk.world().stop();
    opened.is_ok()
}

/// open.O16. The story: the first checkpoint of an opening took nearly all places for nodes, and
/// the opening ended before its second slot. The next one found too few places, because those of
/// the checkpoint before were not free, and the volume could only be opened for reading.
#[test]
fn o16_opening_works_however_often_earlier_ones_were_cut() {
    let (setup, mut cuts, mut refused) = (setup(0), 0, Vec::new());
    for names in NAMES {
        // As many changes as the first checkpoint has places for.
        let stuck = |changed| stuck(&setup, names, changed);
        let fits = |stuck: &Stuck| opens(&setup, &stuck.disk);
        let Some(stuck) = (1..32).map(stuck).take_while(fits).last() else { continue };
        for n in 1.. {
            let (mut disk, mut rounds) = (stuck.disk.clone(), 0);
            while rounds < 3
                && let Some(next) = cut(&setup, &disk, n)
            {
                (disk, rounds, cuts) = (next, rounds + 1, cuts + 1);
                if !opens(&setup, &disk) {
                    refused.push((names, stuck.pairs, n, rounds));
                    break;
                }
            }
            if rounds == 0 {
                break;
            }
        }
    }
    assert!(refused.is_empty(), "O16: of {cuts} cuts: {refused:?}");
    assert!(cuts >= 500, "only {cuts} cuts");
}
