//! Wrappers of a [`BlockDevice`](crate::BlockDevice): one macro writes the methods that a wrapper
//! passes on as they are. A wrapper names them, so that a method that is new in the trait is
//! passed on deliberately.
//!
//! No locks.

pub use forebay_base::Result;
pub use forebay_base::task::{BoxFuture, LocalQueue};

/// Passes the named methods of [`BlockDevice`](crate::BlockDevice) on, in its `impl` for a
/// wrapper. The brackets hold what follows `self.` to reach the lower device.
///
/// ```
/// # use forebay_block::{Bio, BlockDevice, DeviceRef};
/// struct Wrapper { lower: DeviceRef }
/// impl BlockDevice for Wrapper {
///     forebay_block::delegate_block_device!([lower] limits size submit);
///
///     fn name(&self) -> String {
///         format!("wrapper({})", self.lower.name())
///     }
/// }
/// ```
#[macro_export]
macro_rules! delegate_block_device {
    ($to:tt $($name:ident)+) => { $($crate::delegate_block_device!(@ $name $to);)+ };

    (@ name [$($to:tt)+]) => {
        fn name(&self) -> String {
            self.$($to)+.name()
        }
    };
    (@ limits [$($to:tt)+]) => {
        fn limits(&self) -> $crate::Limits {
            self.$($to)+.limits()
        }
    };
    (@ size [$($to:tt)+]) => {
        fn size(&self) -> u64 {
            self.$($to)+.size()
        }
    };
    (@ submit [$($to:tt)+]) => {
        fn submit(&self, bio: $crate::Bio) {
            self.$($to)+.submit(bio);
        }
    };
    (@ is_crowded [$($to:tt)+]) => {
        fn is_crowded(&self) -> bool {
            self.$($to)+.is_crowded()
        }
    };
    (@ wait_for_capacity [$($to:tt)+]) => {
        fn wait_for_capacity(&self) -> $crate::delegate::BoxFuture<'_, ()> {
            self.$($to)+.wait_for_capacity()
        }
    };
    (@ read_into [$($to:tt)+]) => {
        fn read_into(&self, offset: u64, dst: &mut [u8]) -> $crate::delegate::Result<()> {
            self.$($to)+.read_into(offset, dst)
        }
    };
    (@ extents [$($to:tt)+]) => {
        fn extents(
            &self,
            offset: u64,
            len: u64,
            max: usize,
        ) -> $crate::delegate::BoxFuture<'static, $crate::delegate::Result<$crate::MapRuns>> {
            self.$($to)+.extents(offset, len, max)
        }
    };
    (@ attach_thread [$($to:tt)+]) => {
        fn attach_thread(&self) -> Option<Box<dyn $crate::delegate::LocalQueue>> {
            self.$($to)+.attach_thread()
        }
    };
}
