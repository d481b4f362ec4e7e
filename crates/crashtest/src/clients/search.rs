//! One workload of several clients: every moment at which the power may go, what the disk may
//! have kept, and whether what is recovered is something that the histories allow.
//!
//! Invariants: search.X1 what is looked at depends on the workload alone. search.X2 a state is
//! counted once for each moment; what reads the same is recovered once in a workload.
//!
//! No locks.

use super::client::{all_names, path};
use super::file::IMAGE;
use super::ground::IMAGE_BYTES;
use super::history::{FileHistory, Span};
use super::names::At;
use super::plan::{Draw, Step, steps};
use super::run::{Ran, run};
use crate::case::{Case, Kind};
use crate::class::Part;
use crate::counts::Seen;
use crate::search::{STATES_MIN, Share, Spot, Violation};
use crate::setup::{Base, Setup};
use crate::verdict::{Checked, Found, Recoveries};
use forebay_base::sim_world::SimWorld;
use forebay_sim::{CrashState, Fate, PowerCut};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// All subsets of up to so many pending writes.
const ALL_UPTO: usize = 4;
/// Crash states of a moment, at most. There are many moments, and most states of one read the same.
const STATES: usize = 12;
/// States for each recovery, about: [`Share`].
const STATES_PER_RECOVERY: u64 = 4;
/// Recoveries that are remembered.
const MEMO_MAX: usize = 400;

/// How a workload of several clients is drawn.
#[derive(Debug, Clone)]
pub struct Clients {
    /// The volume, or the disk of an image.
    pub setup: Setup,
    /// A volume; else a raw image.
    pub is_volume: bool,
    /// What is done.
    pub draw: Draw,
}

impl Clients {
    /// As the kind of the workload says.
    pub fn of(case: &Case) -> Self {
        let setup = case.setup.clone();
        let (is_volume, drops) = match case.kind {
            Kind::Clients => (true, 0),
            Kind::Dropped => (true, 3),
            _ => (false, 3),
        };
        let unit = u64::from(if is_volume { setup.block_bytes } else { setup.sector });
        let bytes = if is_volume { setup.file_bytes } else { IMAGE_BYTES };
        let (seed, clients) = (setup.seed, 2 + (setup.seed >> 3) as usize % 2);
        let draw = Draw { seed, steps: 30, clients, bytes, unit, names: is_volume, drops };
        Self { setup, is_volume, draw }
    }

    /// Its steps.
    pub fn steps(&self) -> Vec<Step> {
        steps(&self.draw)
    }
}

struct Search<'a> {
    clients: &'a Clients,
    ran: Ran,
    /// Keys of what was found, by the sum of the disk.
    disks: HashMap<u64, u64>,
    found: HashMap<u64, Rc<Found>>,
    /// By key and time: judged, and right.
    judged: HashMap<(u64, u64), ()>,
    recoveries: Recoveries,
}

/// A volume that two or three clients use.
pub fn draw_several(seed: u64) -> (Kind, Setup) {
    (Kind::Clients, Setup { near_end: false, discard: false, ..Setup::with_content(seed) })
}

/// The same, and operations are dropped; on a volume or on a raw image.
pub fn draw_dropped(seed: u64) -> (Kind, Setup) {
    let (_, plain) = draw_several(seed);
    if seed.is_multiple_of(2) {
        return (Kind::Dropped, plain);
    }
    let sector = if seed % 8 == 1 { 4096 } else { 512 };
    (Kind::DroppedOnImage, Setup { sector, block_bytes: plain.block_bytes.max(sector), ..plain })
}

fn chosen(clients: &Clients, keep: Option<&[usize]>) -> Vec<(usize, Step)> {
    let all = clients.steps().into_iter().enumerate();
    all.filter(|(n, _)| keep.is_none_or(|keep| keep.contains(n))).collect()
}

/// The steps of a workload as text.
pub fn list_steps(case: &Case, _: &Base, keep: Option<&[usize]>) -> Vec<String> {
    chosen(&Clients::of(case), keep).iter().map(|(n, step)| format!("{n}: {step:?}")).collect()
}

/// Carries the steps out, and looks at all moments, or at one spot, until `stop` says so.
///
/// # Errors
/// The violation.
pub fn carry_out(
    case: &Case,
    base: &Base,
    Part { keep, spot }: Part<'_>,
    seen: &mut Seen,
    stop: &dyn Fn(&Seen) -> bool,
) -> Result<(), Violation> {
    let running = |what| Violation { spot: Spot::Running, what };
    let clients = &Clients::of(case);
    let steps = chosen(clients, keep);
    let ran = run(&clients.setup, base, clients.is_volume, &steps).map_err(running)?;
    seen.counts.workloads += 1;
    seen.counts.syncs += ran.past.syncs.len() as u64;
    seen.counts.full += u64::from(ran.past.full > 0);
    let (disks, found, judged) = (HashMap::new(), HashMap::new(), HashMap::new());
    let recoveries = Recoveries::default();
    let mut search = Search { clients, ran, disks, found, judged, recoveries };
    let cuts = std::mem::take(&mut search.ran.cuts);
    if let Some(Spot::Cut(n, letters, _)) = spot {
        let Some(cut) = cuts.get(*n) else { return Ok(()) };
        let fates: Vec<Fate> = letters.chars().filter_map(Fate::from_letter).collect();
        return match fates.len() == cut.pending() {
            true => search.state(*n, cut, &cut.state(&fates), seen),
            false => Ok(()),
        };
    }
    if spot.is_some() {
        return Ok(());
    }
    let share = Share::begin(STATES_PER_RECOVERY, seen);
    for (n, cut) in cuts.iter().enumerate() {
        seen.counts.cuts += 1;
        let states = cut.states(ALL_UPTO).shuffled(clients.setup.seed ^ (n as u64) << 20);
        for (count, state) in states.take(STATES).enumerate() {
            if count >= STATES_MIN && share.is_low(seen) {
                break;
            }
            search.state(n, cut, &state, seen)?;
        }
        if stop(seen) {
            break;
        }
    }
    Ok(())
}

impl Search<'_> {
    fn state(
        &mut self,
        n: usize,
        cut: &PowerCut,
        state: &CrashState,
        seen: &mut Seen,
    ) -> Result<(), Violation> {
        seen.state(state);
        let at = |what| Violation { spot: Spot::Cut(n, state.label.clone(), false), what };
        self.verdict(cut.tag(), state, seen).map_err(at)
    }

    fn verdict(&mut self, time: u64, state: &CrashState, seen: &mut Seen) -> Checked<()> {
        let sum = state.sum();
        if !self.clients.is_volume {
            if self.judged.insert((sum, time), ()).is_none() {
                seen.checked(sum, !self.disks.contains_key(&sum));
                self.disks.insert(sum, sum);
                let bytes = state.mount(SimWorld::new(1)).peek(0, IMAGE_BYTES as usize);
                // What the device does not tear is old or new.
                let unit = u64::from(self.clients.setup.sector);
                self.content(IMAGE, &bytes, unit, (0, time))?;
            }
            return Ok(());
        }
        let key = match self.disks.get(&sum) {
            Some(key) => *key,
            None => {
                if self.found.len() >= MEMO_MAX {
                    (self.found, self.disks) = (HashMap::new(), HashMap::new());
                }
                let (found, is_new) = self.recoveries.of(&self.clients.setup, state)?;
                let key = found.key();
                seen.checked(key, is_new);
                self.disks.insert(sum, key);
                self.found.insert(key, found);
                key
            }
        };
        if self.judged.contains_key(&(key, time)) {
            return Ok(());
        }
        let found = self.found[&key].clone();
        self.judge(&found, time)?;
        self.judged.insert((key, time), ());
        Ok(())
    }

    /// Names that are those of a prefix, and content that was there.
    fn judge(&self, found: &Found, time: u64) -> Checked<()> {
        let letters: BTreeMap<Vec<u8>, At> = all_names().map(|at| (path(at), at)).collect();
        let mut names = BTreeMap::new();
        for (path, (ino, _)) in &found.files {
            let at = letters.get(path);
            let at = at.ok_or_else(|| format!("{} was never made", path.escape_ascii()))?;
            names.insert(*at, *ino);
        }
        let (orders, now) = (&self.ran.orders, time + 1);
        let acked = self.ran.past.syncs.iter().filter(|sync| sync.end < now);
        let synced = acked.map(|sync| sync.begin).max().unwrap_or(0);
        let prefixes = orders.prefixes(synced, now);
        let is_known = |ino| orders.is_known(ino);
        let mut why = None;
        for prefix in prefixes.iter().filter(|prefix| prefix.are(&names, is_known)) {
            let content = found.files.values().try_for_each(|(ino, content)| {
                let floor = prefix.floors.get(ino).copied().unwrap_or(0);
                self.content(
                    *ino,
                    content,
                    u64::from(self.clients.setup.block_bytes),
                    (floor, time),
                )
            });
            match content {
                Ok(()) => return Ok(()),
                Err(what) => why = Some(what),
            }
        }
        let may = || prefixes.iter().map(|names| format!("{:?}", names.entries));
        Err(why.unwrap_or_else(|| {
            let may: Vec<String> = may().take(8).collect();
            format!(
                "at {time}, synced at {synced}: the names are {names:?}, may be {}",
                may.join(" or ")
            )
        }))
    }

    /// The content of one file, which was there before `floor`.
    fn content(
        &self,
        ino: u64,
        bytes: &[u8],
        block: u64,
        (floor, time): (u64, u64),
    ) -> Checked<()> {
        let past = &self.ran.past;
        let of =
            |sync: &&super::log::Synced| sync.of.is_none_or(|of| of == ino) && sync.end <= time;
        let synced = past.syncs.iter().filter(of).map(|sync| sync.begin).max().unwrap_or(0);
        let span = Span { from: synced.max(floor), to: time + 1, crashed: true };
        let unknown = FileHistory::default();
        let file = past.files.get(&ino).unwrap_or(&unknown);
        let checked = file.check_size(bytes.len() as u64, span);
        let checked = checked.and_then(|()| file.check(0, bytes, block, span));
        checked.map_err(|what| format!("#{ino}, at {time}: {what}"))
    }
}
