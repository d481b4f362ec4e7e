//! Power losses: no crash state loses flushed data, and some lose unflushed data.

use forebay_base::buf::DataRef;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::split_mix;
use forebay_block::bdev::BlockDevice;
use forebay_block::bdev::io;
use forebay_block::bio::BioFlags;
use forebay_block::bio::BioOp;
use forebay_sim::{Fate, SimConfig, SimDisk};
use std::collections::BTreeSet;

const SECTORS: u64 = 64;

fn disk(seed: u64) -> SimDisk {
    SimDisk::new(SimWorld::new(seed), SimConfig { size: SECTORS * 512, ..SimConfig::default() })
}

fn put(d: &SimDisk, sector: u64, value: u8, sectors: usize) {
    d.write_from(sector * 512, &vec![value; sectors * 512], BioFlags::empty()).unwrap();
}

async fn flush(d: &SimDisk) {
    io(d, BioOp::Flush, 0, 0, DataRef::None, BioFlags::empty()).await.result.unwrap();
}

fn first_bytes(d: &SimDisk, sectors: u64) -> Vec<u8> {
    (0..sectors).map(|s| d.peek(s * 512, 1)[0]).collect()
}

#[test]
fn all_subsets_of_few_pending_writes() {
    let d = disk(1);
    for i in 0..3u64 {
        put(&d, i, 1, 1);
    }
    let states: BTreeSet<_> =
        d.crash_states().map(|s| first_bytes(&s.mount(SimWorld::new(0)), 3)).collect();
    assert_eq!((d.crash_states().len(), states.len()), (8, 8));
}

#[test]
fn last_write_to_sector_wins_or_is_lost_completely() {
    let d = disk(2);
    put(&d, 0, 1, 1);
    put(&d, 0, 2, 1);
    d.write_from(512, &[3; 512], BioFlags::empty()).unwrap();
    d.write_from(512, &[4; 512], BioFlags::FUA).unwrap();
    let states: BTreeSet<_> =
        d.crash_states().map(|s| first_bytes(&s.mount(SimWorld::new(0)), 2)).collect();
    // Sector 1 was written with FUA: no state brings an older content back.
    let wanted: BTreeSet<_> = [vec![0, 4], vec![1, 4], vec![2, 4]].into();
    assert_eq!(states, wanted);
}

#[test]
fn torn_writes_are_among_the_states() {
    let d = disk(3);
    put(&d, 0, 1, 4);
    let states: BTreeSet<_> =
        d.crash_states().map(|s| first_bytes(&s.mount(SimWorld::new(0)), 4)).collect();
    for wanted in [[0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]] {
        assert!(states.contains(&wanted[..]), "{wanted:?}");
    }
    let whole = disk(3);
    put(&whole, 0, 1, 1);
    for state in whole.crash_states() {
        let sector = state.mount(SimWorld::new(0)).peek(0, 512);
        assert!(sector.iter().all(|b| *b == sector[0]), "a sector is never torn");
    }
}

#[test]
fn many_pending_writes_are_sampled() {
    let d = disk(4);
    for i in 0..20 {
        put(&d, i, 1, 1);
    }
    let states: BTreeSet<_> =
        d.crash_states().map(|s| first_bytes(&s.mount(SimWorld::new(0)), 20)).collect();
    for n in 0..20usize {
        let prefix: Vec<u8> = (0..20).map(|i| u8::from(i < n)).collect();
        let dropped: Vec<u8> = (0..20).map(|i| u8::from(i != n)).collect();
        let kept: Vec<u8> = (0..20).map(|i| u8::from(i == n)).collect();
        assert!([prefix, dropped, kept].iter().all(|s| states.contains(s)), "{n}");
    }
    assert!(states.len() > 90);
}

/// crash.R1. Random writes, FUA writes and flushes; every sector's legal contents after a cut are
/// known.
#[test]
fn nothing_flushed_is_ever_lost_and_unflushed_sometimes_is() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..60 {
        let d = disk(seed);
        let mut legal: Vec<BTreeSet<u8>> = vec![[0].into(); SECTORS as usize];
        let mut rng = seed;
        d.world().run(async {
            for step in 1..120u64 {
                let sector = split_mix(&mut rng) % SECTORS;
                let value = step as u8;
                match split_mix(&mut rng) % 8 {
                    0 => {
                        flush(&d).await;
                        for (s, set) in legal.iter_mut().enumerate() {
                            *set = [d.peek(s as u64 * 512, 1)[0]].into();
                        }
                    }
                    1 => {
                        d.write_from(sector * 512, &[value; 512], BioFlags::FUA).unwrap();
                        legal[sector as usize] = [value].into();
                    }
                    _ => {
                        put(&d, sector, value, 1);
                        legal[sector as usize].insert(value);
                    }
                }
            }
        });
        let newest = first_bytes(&d, SECTORS);
        for cut in 0..20 {
            let after = d.power_cut(cut);
            for (s, got) in first_bytes(&after, SECTORS).into_iter().enumerate() {
                assert!(legal[s].contains(&got), "seed {seed} cut {cut} sector {s}: {got}");
                lost += u64::from(got != newest[s]);
                kept += u64::from(got == newest[s] && legal[s].len() > 1);
            }
            assert_eq!(d.power_cut(cut).content_digest(), after.content_digest());
        }
    }
    assert!(lost > 1000 && kept > 1000, "{lost} {kept}");
}

/// disk.D3: after a power loss every request fails, and writes in flight may be kept.
#[test]
fn power_off_fails_requests_writes_in_flight_may_persist() {
    let d = disk(6);
    d.power_off_after(2);
    d.world().run(async {
        put(&d, 0, 1, 1);
        let buf = forebay_base::buf::AlignedBuf::copy_of(&[2; 512]);
        let write = io(&d, BioOp::Write, 512, 512, DataRef::Buf(buf), BioFlags::empty());
        let mut write = Box::pin(write);
        std::future::poll_fn(|cx| {
            assert!(write.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        assert!(d.write_from(1024, &[3; 512], BioFlags::empty()).is_err());
        assert!(d.is_off() && write.await.result.is_err());
    });
    let states: BTreeSet<_> =
        d.crash_states().map(|s| first_bytes(&s.mount(SimWorld::new(0)), 3)).collect();
    let wanted: BTreeSet<_> = [[0, 0, 0], [0, 2, 0], [1, 0, 0], [1, 2, 0]].map(Vec::from).into();
    assert_eq!(states, wanted);
}

#[test]
fn process_crash_keeps_completed_writes() {
    for seed in 0..20 {
        let d = disk(7);
        put(&d, 0, 1, 1);
        let after = d.process_crash(seed);
        assert_eq!(first_bytes(&after, 2), [1, 0]);
        assert_eq!(after.pending_writes(), 1);
    }
}

/// The recorded moments are those before each change, and inspecting them changes nothing.
#[test]
fn recording_keeps_the_moment_before_each_change() {
    let run = |record: bool| {
        let d = disk(8);
        if record {
            d.record_cuts();
        }
        put(&d, 0, 1, 1);
        d.tag_cuts(1);
        put(&d, 1, 2, 1);
        d.world().run(flush(&d));
        d.tag_cuts(2);
        put(&d, 2, 3, 1);
        (d.take_cuts(), d.content_digest(), d.world().digest())
    };
    let (cuts, content, world) = run(true);
    let (none, same_content, same_world) = run(false);
    assert_eq!((content, world), (same_content, same_world));
    assert!(none.is_empty());
    let seen: Vec<_> = cuts.iter().map(|cut| (cut.pending(), cut.tag())).collect();
    assert_eq!(seen, [(0, 0), (1, 1), (2, 1), (0, 2)]);
    let states: BTreeSet<_> =
        cuts[2].states(10).map(|s| first_bytes(&s.mount(SimWorld::new(0)), 3)).collect();
    assert_eq!(states, [vec![0, 0, 0], vec![1, 0, 0], vec![0, 2, 0], vec![1, 2, 0]].into());
    let killed = first_bytes(&cuts[2].killed(1, SimWorld::new(0)), 3);
    assert_eq!(killed, [1, 2, 0], "what had completed is there");
}

/// crash.R2; and pages of 4 KiB tear between each other, too.
#[test]
fn state_is_rebuilt_from_its_letters() {
    let d = disk(9);
    put(&d, 4, 1, 16);
    put(&d, 40, 2, 4);
    let cut = d.cut_now();
    let mut letters = BTreeSet::new();
    for state in cut.states(10) {
        let fates: Option<Vec<_>> = state.label.chars().map(Fate::from_letter).collect();
        let again = cut.state(&fates.expect("each has a letter"));
        assert_eq!((&again.label, again.sum()), (&state.label, state.sum()));
        assert_eq!(state.lost(), state.label.contains('.'));
        assert_eq!(state.reordered(), state.label.starts_with('.') && !state.label.ends_with('.'));
        letters.extend(state.label.chars());
    }
    assert!(".+<>epq1".chars().all(|letter| letters.contains(&letter)), "{letters:?}");
    let fates = [Fate::from_letter('p').unwrap(), Fate::Gone];
    let pages = first_bytes(&cut.state(&fates).mount(SimWorld::new(0)), 24);
    let wanted: Vec<u8> =
        (0..24).map(|s| u8::from((4..8).contains(&s) || (16..20).contains(&s))).collect();
    assert_eq!(pages, wanted);
}
