//! Tables of plain atomics in memory that is zero until it is touched: sized for the largest
//! budget, resident as far as they are used.
//!
//! Invariant: Z1 all bits zero is the empty entry, and the only content of what was never used or
//! was given back ([`ZeroTable::forget`]). Locks: none; entries are atomics.

pub(crate) use imp::ZeroTable;

/// A type of atomics whose default is all bits zero.
///
/// # Safety
/// All bits zero is a valid value, equal to the default, and the type may change under a shared
/// reference in all its bytes (it is made of atomics).
pub(crate) unsafe trait Zeroed: Default + Send + Sync {
    /// Stores the empty entry.
    #[cfg(shuttle)]
    fn empty(&self);
}

#[cfg(not(shuttle))]
mod imp {
    use super::Zeroed;
    use crate::memory::region::Region;
    use forebay_base::Result;
    use forebay_base::sync::atomic::{AtomicU32, AtomicU64};
    use std::marker::PhantomData;
    use std::ops::Deref;

    // SAFETY: an atomic integer, zero by default.
    unsafe impl Zeroed for AtomicU32 {}
    // SAFETY: an atomic integer, zero by default.
    unsafe impl Zeroed for AtomicU64 {}

    /// A table of a fixed length.
    pub(crate) struct ZeroTable<T> {
        region: Region,
        len: usize,
        marker: PhantomData<T>,
    }

    impl<T: Zeroed> ZeroTable<T> {
        /// `len` empty entries; none of them resident.
        pub fn new(len: usize) -> Result<Self> {
            let region = Region::new(len * size_of::<T>())?;
            Ok(Self { region, len, marker: PhantomData })
        }

        /// Asks for huge pages under the first `used` entries: tables are read at random, and a
        /// miss in the TLB costs as much as the copy of a small block.
        pub fn advise(&self, used: usize) {
            self.region.advise(used * size_of::<T>());
        }

        /// Gives back the memory of the entries from `from` on, in whole pages: they are zero
        /// again. The caller needs none of their content. Returns the first entry given back, which
        /// is the length of the table if the system keeps the memory.
        pub fn forget(&self, from: usize) -> usize {
            (self.region.release(from * size_of::<T>()) / size_of::<T>()).min(self.len)
        }

        /// Puts memory under the first `used` entries.
        pub fn prefault(&self, used: usize) {
            self.region.populate(0..used * size_of::<T>());
        }
    }

    impl<T: Zeroed> Deref for ZeroTable<T> {
        type Target = [T];
        #[inline]
        fn deref(&self) -> &[T] {
            // SAFETY: the region holds `len` entries, starts on a boundary of a huge page, lives as
            // long as self, and is zero (Z1) where nothing was stored; changes under the reference
            // are what atomics are for (Zeroed).
            unsafe { std::slice::from_raw_parts(self.region.base().cast(), self.len) }
        }
    }
}

#[cfg(shuttle)]
mod imp {
    use super::Zeroed;
    use forebay_base::Result;
    use forebay_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use std::ops::Deref;

    // SAFETY: not relied upon here: shuttle's atomics are made one by one.
    unsafe impl Zeroed for AtomicU32 {
        fn empty(&self) {
            self.store(0, Ordering::SeqCst);
        }
    }
    // SAFETY: as above.
    unsafe impl Zeroed for AtomicU64 {
        fn empty(&self) {
            self.store(0, Ordering::SeqCst);
        }
    }

    /// A table of a fixed length. Atomics of shuttle hold more than their value, so each entry is
    /// constructed.
    pub(crate) struct ZeroTable<T>(Box<[T]>);

    impl<T: Zeroed> ZeroTable<T> {
        /// `len` empty entries.
        pub fn new(len: usize) -> Result<Self> {
            Ok(Self((0..len).map(|_| T::default()).collect()))
        }

        /// Nothing to do here.
        pub fn advise(&self, _used: usize) {}

        /// Entries from `from` on are zero again.
        pub fn forget(&self, from: usize) -> usize {
            self.0[from..].iter().for_each(Zeroed::empty);
            from
        }

        /// All entries are resident already.
        pub fn prefault(&self, _used: usize) {}
    }

    impl<T: Zeroed> Deref for ZeroTable<T> {
        type Target = [T];
        fn deref(&self) -> &[T] {
            &self.0
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use forebay_base::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn zero_table_entries_are_zero_before_store_and_after_forget() {
        let table: ZeroTable<AtomicU64> = ZeroTable::new(1 << 30).unwrap();
        table.advise(1000);
        assert_eq!((table.len(), table[(1 << 30) - 1].load(Ordering::Relaxed)), (1 << 30, 0));
        (0..2000).for_each(|i| table[i].store(i as u64 + 1, Ordering::Relaxed));
        table.forget(512);
        assert_eq!(table[511].load(Ordering::Relaxed), 512);
        assert_eq!(table[512].load(Ordering::Relaxed), 0, "Z1");
    }
}
