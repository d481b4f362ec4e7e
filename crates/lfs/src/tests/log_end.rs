//! Where recovery finds the end of the log if blocks are damaged or cannot be read.
//!
//! No locks.

use crate::device::layout::Layout;
use crate::format::place::{Place, SUMMED_BYTES};
use crate::format::record::{RECORD_HEADER_BYTES, RecordFields, RecordHeader, RecordKind};
use crate::map::overlay::Where;
use crate::tests::faults::failing;
use crate::tests::reuse::{check, create, open, setup, write};
use crate::tests::setup::Setup;
use crate::tests::sums_off::blank;
use crate::volume::fsck::FindingKind;
use crate::{OpenOptions, Volume};
use forebay_base::buf::AlignedBuf;
use forebay_base::codec::Writer;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::{World, WorldRef};
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_block::{BioOp, DeviceRef};
use forebay_sim::{Fault, FaultRule, SimDisk};
use forebay_vfs::{FileSystem, Ino, Name, OpenFlags};
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4096;
const BLOCKS: usize = 3;
const SECTOR: u64 = 512;

/// A disk whose log ends with a synced write, and perhaps another group behind it.
struct Ended {
    disk: SimDisk,
    layout: Layout,
    /// The middle block of the file `f`, bytes on the device.
    block: u64,
    /// The group of the synced write, and the group behind it.
    synced: Place,
    behind: Place,
    end: Place,
}

fn data_in_runs() -> Setup {
    Setup { volume_bytes: 4 << 20, ..setup(0) }
}

fn head(volume: &Volume) -> Place {
    let head = volume.0.log.ctl.lock().head;
    Place::new(head.segment.expect("something was written"), head.offset)
}

/// A file is written and synced; then two files are made, in one group of the log. `idle`: after
/// that the log is idle, and its mark is written.
fn ended(more: bool, idle: bool) -> Ended {
    ended_on(&data_in_runs().blank(), more, idle)
}

/// As [`ended`], on a disk with an empty volume.
fn ended_on(disk: &SimDisk, more: bool, idle: bool) -> Ended {
    let setup = data_in_runs();
    let (layout, places) = disk.world().run(async {
        let volume = open(&setup, disk).await.unwrap();
        let (ino, file) = create(&volume, "f").await.unwrap();
        write(&file, 0, &[1; BLOCK]).await.unwrap();
        file.sync(true).await.unwrap();
        let synced = head(&volume);
        for n in 0..BLOCKS {
            write(&file, (n * BLOCK) as u64, &[2; BLOCK]).await.unwrap();
        }
        file.sync(true).await.unwrap();
        let behind = head(&volume);
        if more {
            create(&volume, &"g".repeat(255)).await.unwrap();
            create(&volume, &"h".repeat(255)).await.unwrap();
            volume.syncfs().await.unwrap();
        }
        let end = head(&volume);
        let data_id = volume.0.state.lock().names().node(ino.0).unwrap().inode.data_id;
        let Where::Run(block) = volume.0.piece_at(data_id, 1).await.unwrap().0.at else {
            panic!("the content lies in a run")
        };
        if idle {
            disk.world().sleep(Duration::from_millis(50)).await;
        }
        (volume.0.layout, [synced, behind, end, block])
    });
    disk.world().stop();
    let [synced, behind, end, block] = places;
    assert!(synced.segment == behind.segment && behind.segment == end.segment, "{places:?}");
    let block = layout.device_offset(block);
    assert_eq!(disk.peek(block, BLOCK), [2; BLOCK]);
    Ended { disk: disk.in_world(SimWorld::new(2)), layout, block, synced, behind, end }
}

impl Ended {
    fn at(&self, place: Place) -> u64 {
        self.layout.device_offset(place)
    }

    /// The first record behind the synced write was never written, the second one was.
    fn lose_first_record_behind(&self) {
        let at = self.at(self.behind);
        let bytes = self.disk.peek(at, BLOCK);
        let first = RecordHeader::peek(&bytes, self.behind, &self.layout.geometry).unwrap();
        let second = self.behind.after(first.length).unwrap();
        assert!(u64::from(first.length) >= SECTOR && second < self.end, "{first:?}");
        let rest = self.disk.peek(self.at(second), BLOCK);
        RecordHeader::peek(&rest, second, &self.layout.geometry).expect("a second record");
        self.disk.poke(at, &[0; SECTOR as usize]);
    }

    /// Reads of this sector fail.
    fn cannot_read(&self, at: u64) {
        let rule = FaultRule::on(BioOp::Read, Fault::Fail(ErrorKind::Io));
        self.disk.inject(rule.within(at..at + SECTOR).sticky());
    }

    async fn open(&self) -> Result<Volume> {
        open(&data_in_runs(), &self.disk).await
    }

    async fn open_read_only(&self) -> Result<Volume> {
        let device: DeviceRef = Arc::new(self.disk.clone());
        let world: WorldRef = self.disk.world().clone();
        let options = OpenOptions { read_only: true, ..data_in_runs().options(&world) };
        Volume::open(&device, &world, &options).await
    }
}

/// A byte of each block of the file; `None` if the block cannot be read.
async fn blocks_of_f(volume: &Volume) -> Vec<Option<u8>> {
    let attr = volume.lookup(Ino::ROOT, Name::new(b"f").unwrap()).await.unwrap();
    let file = volume.open(attr.ino, OpenFlags::READ).await.unwrap();
    let mut found = Vec::new();
    for n in 0..attr.size.div_ceil(BLOCK as u64) {
        let read = file.read(n * BLOCK as u64, AlignedBuf::new(BLOCK), IoFlags::empty()).await;
        found.push(read.1.ok().map(|_| read.0[0]));
    }
    found
}

async fn has(volume: &Volume, name: &str) -> bool {
    volume.lookup(Ino::ROOT, Name::new(name.as_bytes()).unwrap()).await.is_ok()
}

/// The story: the group behind a synced write was not flushed when the power was lost. Its first
/// record is lost. Its second record is on the device, and says that the synced write was durable.
/// One block of this write had gone bad. Recovery searched only for a record that calls the lost
/// record durable. So it took the bad block for the end of the log, and dropped a synced write of
/// three blocks silently (rollforward.R12, evidence.R20).
#[test]
fn synced_write_with_bad_block_called_durable_later_is_kept() {
    let ended = ended(true, false);
    ended.lose_first_record_behind();
    ended.disk.poke(ended.block, &[9; SECTOR as usize]);
    ended.disk.world().run(async {
        let volume = ended.open().await.expect("the log ends where a record is lost");
        assert!(!has(&volume, &"g".repeat(255)).await && !has(&volume, &"h".repeat(255)).await);
        assert_eq!(blocks_of_f(&volume).await, [Some(2), None, Some(2)]);
        volume.close().await.unwrap();
    });
    ended.disk.world().stop();
    let report = check(&ended.disk.in_world(SimWorld::new(3)));
    let bad = report.findings.iter().filter(|finding| finding.kind == FindingKind::Content);
    let named: Vec<_> = bad.map(|finding| finding.path.clone()).collect();
    assert_eq!(named, [Some(b"/f".to_vec())], "fsck names the file: {report:?}");
}

/// No record calls the last write durable, so a bad block in it is taken for a write that was in
/// flight at a power loss.
#[test]
fn last_write_with_bad_block_not_called_durable_is_dropped() {
    let ended = ended(false, false);
    ended.disk.poke(ended.block, &[9; SECTOR as usize]);
    ended.disk.world().run(async {
        let volume = ended.open().await.unwrap();
        assert_eq!(blocks_of_f(&volume).await, [Some(1)]);
    });
    ended.disk.world().stop();
}

/// A record that is lost was durable, so the volume opens for reading only. The story: the opening
/// for reading left out the records before it, which recovery holds until a record calls them
/// durable. But the record that calls the lost one durable calls them durable, too.
#[test]
fn read_only_open_has_all_records_before_log_damage() {
    let ended = ended(true, true);
    ended.lose_first_record_behind();
    ended.disk.poke(ended.block, &[9; SECTOR as usize]);
    ended.disk.world().run(async {
        let error = ended.open().await.err().expect("a durable record is lost");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let volume = ended.open_read_only().await.unwrap();
        assert!(volume.damage().is_some());
        assert_eq!(blocks_of_f(&volume).await, [Some(2), None, Some(2)]);
    });
    ended.disk.world().stop();
}

/// The story: a sector behind the end of the log could not be read, and the volume did not open for
/// writing: the search for records that call the end durable read 9 MiB in one request
/// (evidence.R25). An unreadable sector at the end itself is accepted, too: no readable record says
/// that a record was there.
#[test]
fn unreadable_sector_behind_the_log_opens_for_writing() {
    let first = ended(true, false);
    let segment = first.layout.segment_bytes() as u32;
    let sectors = (first.end.offset..segment).step_by(SECTOR as usize);
    let sectors: Vec<u32> = sectors.clone().take(20).chain(sectors.step_by(7)).collect();
    for offset in sectors {
        let ended = ended(true, false);
        ended.cannot_read(ended.at(Place::new(ended.end.segment, offset)));
        ended.disk.world().run(async {
            let volume = ended.open().await.unwrap_or_else(|e| panic!("{offset}: {e}"));
            assert!(
                has(&volume, &"h".repeat(255)).await,
                "R25: {offset}: all of the log was applied"
            );
            assert_eq!(blocks_of_f(&volume).await, [Some(2); BLOCKS]);
            volume.close().await.unwrap();
        });
        ended.disk.world().stop();
    }
}

/// The end of the log cannot be read, and neither can a sector that may hold a record that calls it
/// durable: the volume does not open for writing, and says why (rollforward.R18). For reading it
/// opens, and says what may be missing.
#[test]
fn unreadable_log_end_and_unreadable_evidence_opens_for_reading_only() {
    let ended = ended(true, false);
    ended.cannot_read(ended.at(ended.end));
    ended.cannot_read(ended.at(ended.end) + 5 * SECTOR);
    ended.disk.world().run(async {
        let error = ended.open().await.err().expect("synced records may be hidden");
        assert!(
            error.kind() == ErrorKind::Io && error.to_string().contains("may go on"),
            "{error}"
        );
        let volume = ended.open_read_only().await.unwrap();
        assert!(volume.damage().is_some());
        assert_eq!(blocks_of_f(&volume).await, [Some(2); BLOCKS]);
    });
    ended.disk.world().stop();
}

/// A record that cannot be read, and that the mark calls durable, is not the end (rollforward.R12);
/// nor is an unreadable record between readable ones.
#[test]
fn unreadable_record_called_durable_by_mark_opens_for_reading_only() {
    for at_synced in [false, true] {
        let ended = ended(true, true);
        ended.cannot_read(ended.at(if at_synced { ended.synced } else { ended.behind }));
        ended.disk.world().run(async {
            let error = ended.open().await.err().expect("a durable record is lost");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains("says it was durable"), "{error}");
            let volume = ended.open_read_only().await.unwrap();
            assert!(volume.damage().is_some());
        });
        ended.disk.world().stop();
    }
}

/// A block of the last write cannot be read. If nothing calls the write durable, that is the end of
/// the log, as with a block that reads wrong; else the write is kept, without that block. Earlier,
/// the open was refused in the first case.
#[test]
fn last_write_with_unreadable_block_is_kept_only_if_durable() {
    for idle in [false, true] {
        let ended = ended(false, idle);
        ended.cannot_read(ended.block);
        ended.disk.world().run(async {
            let volume = ended.open().await.unwrap_or_else(|e| panic!("{idle}: {e}"));
            let wanted: &[_] = if idle { &[Some(2), None, Some(2)] } else { &[Some(1)] };
            assert_eq!(blocks_of_f(&volume).await, wanted);
        });
        ended.disk.world().stop();
    }
}

/// A volume without sums flushes data before it writes the record that names it. So the last write
/// was synced whatever its blocks hold now. The story: recovery read the data although it could not
/// verify it. A block that could not be read ended the log, and the synced write was gone.
#[test]
fn last_write_without_sums_is_kept_whatever_its_blocks_are() {
    for unreadable in [false, true] {
        let ended = ended_on(&blank(&data_in_runs(), false), false, false);
        match unreadable {
            false => ended.disk.poke(ended.block, &[9; SECTOR as usize]),
            true => ended.cannot_read(ended.block),
        }
        ended.disk.world().run(async {
            let volume = ended.open().await.unwrap_or_else(|e| panic!("{unreadable}: {e}"));
            let bad = (!unreadable).then_some(9);
            assert_eq!(blocks_of_f(&volume).await, [Some(2), bad, Some(2)]);
        });
        ended.disk.world().stop();
    }
}

/// The log continues in another segment, because the one before is full, or after a failed flush in
/// a younger generation. The header of that segment is gone, or cannot be read, in both copies. The
/// story: the search skipped a segment without a header. All records there were dropped, and the
/// volume opened for writing (evidence.R19).
#[test]
fn log_segment_without_a_header_opens_for_reading_only() {
    for (repaired, unreadable) in [(false, false), (false, true), (true, true)] {
        let setup = data_in_runs();
        let disk = setup.blank();
        let (layout, segment) = disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let first = head(&volume).segment;
            create(&volume, "before").await.unwrap();
            volume.syncfs().await.unwrap();
            if repaired {
                disk.inject(FaultRule::on(BioOp::Flush, Fault::Fail(ErrorKind::Io)));
                create(&volume, "fails").await.unwrap();
                volume.syncfs().await.unwrap_err();
            }
            let mut n = 0;
            while n < 2 || head(&volume).segment == first {
                create(&volume, &format!("{n:0200}")).await.unwrap();
                volume.syncfs().await.unwrap();
                n += 1;
            }
            for n in 0..3 {
                create(&volume, &format!("behind {n}")).await.unwrap();
                volume.syncfs().await.unwrap();
            }
            disk.world().sleep(Duration::from_millis(50)).await;
            (volume.0.layout, head(&volume).segment)
        });
        disk.world().stop();
        let disk = disk.in_world(SimWorld::new(2));
        let at = layout.device_offset(Place::new(segment, 0));
        match unreadable {
            false => disk.poke(at, &[0; 2 * SECTOR as usize]),
            true => {
                let rule = FaultRule::on(BioOp::Read, Fault::Fail(ErrorKind::Io));
                disk.inject(rule.within(at..at + 2 * SECTOR).sticky());
            }
        }
        let opened = disk.world().run(open(&setup, &disk));
        let error = opened.err().unwrap_or_else(|| panic!("{repaired}, {unreadable}: it opens"));
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{repaired}, {unreadable}: {error}");
        assert!(error.to_string().contains("says it was durable"), "{error}");
        disk.world().stop();
    }
}

/// Bytes behind the end of the log look like records of the maximum length: a hostile user may have
/// written them into a file. The story: recovery checksummed each of them, so the time grew with
/// the square of the segment's length (evidence.R26).
#[test]
fn false_records_behind_the_log_are_summed_in_linear_time() {
    let ended = ended(true, false);
    let segment = ended.layout.segment_bytes() as u32;
    let mut all = vec![0; (segment - ended.end.offset) as usize];
    for offset in (ended.end.offset..segment).step_by(RECORD_HEADER_BYTES) {
        let place = Place::new(ended.end.segment, offset);
        let length = (segment - offset).min(ended.layout.geometry.max_record_bytes());
        let fields = RecordFields {
            kind: RecordKind::Changes,
            tree: 0,
            sequence: 1 << 40,
            generation: 1 << 40,
            predecessor: 0,
            durable_through: (1 << 40) - 1,
        };
        let header = RecordHeader {
            fields,
            place,
            sum: 0,
            length,
            body_bytes: 0,
            changes: 0,
            payload_offset: length,
            payload_bytes: 0,
            payload_sum: 0,
        };
        let bytes = &mut all[(offset - ended.end.offset) as usize..][..RECORD_HEADER_BYTES];
        header.encode_into(&mut Writer::new("record", bytes)).unwrap();
        if offset + length <= segment {
            RecordHeader::peek(bytes, place, &ended.layout.geometry).expect("it looks like one");
        }
    }
    assert!(all.len() > 300 * RECORD_HEADER_BYTES, "{} bytes", all.len());
    ended.disk.poke(ended.at(ended.end), &all);
    ended.disk.world().run(async {
        SUMMED_BYTES.set(0);
        let volume = ended.open().await.unwrap();
        let summed = SUMMED_BYTES.get();
        assert!(summed < 16 * u64::from(segment), "R26: {summed} bytes in {segment}");
        assert!(has(&volume, &"h".repeat(255)).await, "all of the log is there");
        assert_eq!(blocks_of_f(&volume).await, [Some(2); BLOCKS]);
        volume.close().await.unwrap();
    });
    ended.disk.world().stop();
}

/// Behind the end of the log more units cannot be read than the search passes over. So the volume
/// does not open for writing. The story: the opening for reading left out the records that recovery
/// holds until the search says whether they are durable (evidence.R25).
#[test]
fn many_unreadable_units_behind_log_open_with_all_records() {
    for (units, opens) in [(64, true), (65, false)] {
        let ended = ended(true, false);
        let first = ended.at(ended.end) + SECTOR;
        assert!(u64::from(ended.end.offset) + 66 * SECTOR < ended.layout.segment_bytes());
        let rule = FaultRule::on(BioOp::Read, Fault::Fail(ErrorKind::Io));
        ended.disk.inject(rule.within(first..first + units * SECTOR).sticky());
        ended.disk.world().run(async {
            let error = match ended.open().await {
                Ok(volume) => {
                    assert!(opens, "R25: {units} units");
                    return volume.close().await.unwrap();
                }
                Err(error) => error,
            };
            assert!(!opens && error.kind() == ErrorKind::Io, "{units} units: {error}");
            let volume = ended.open_read_only().await.unwrap();
            assert!(volume.damage().is_some(), "it says that records may be missing");
            assert!(has(&volume, &"g".repeat(255)).await && has(&volume, &"h".repeat(255)).await);
            assert_eq!(blocks_of_f(&volume).await, [Some(2); BLOCKS]);
        });
        ended.disk.world().stop();
    }
}

/// open.O12. The story: flushes failed, so the log continued in a fresh segment and generation,
/// which only the header of that segment named. A power loss destroyed the header and kept a record
/// behind it. Recovery drew the same generation for the same segment, and after another crash the
/// next recovery took the old record for a new one.
#[test]
fn recovery_draws_generation_above_those_of_log_repairs() {
    let setup = setup(0);
    let disk = setup.blank();
    let generation = |volume: &Volume| volume.0.log.ctl.lock().head.generation;
    let (opened, drawn) = disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let opened = generation(&volume);
        disk.record_cuts();
        disk.inject(failing(BioOp::Flush).times(3));
        for name in ["a", "b", "c"] {
            create(&volume, name).await.unwrap();
            volume.syncfs().await.ok();
        }
        (opened, generation(&volume))
    });
    disk.world().stop();
    assert!(drawn > opened, "the log was repaired");
    let mut states = 0;
    for cut in disk.take_cuts() {
        for state in cut.states(4) {
            states += 1;
            let disk = state.mount(SimWorld::new(2));
            let next = disk.world().run(async { generation(&open(&setup, &disk).await.unwrap()) });
            disk.world().stop();
            assert!(next > drawn, "{}: {next} behind {drawn}", state.label);
        }
    }
    assert!(states > 20, "{states} states");
}
