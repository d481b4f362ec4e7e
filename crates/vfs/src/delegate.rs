//! Macros for wrappers of a [`FileSystem`](crate::FileSystem) or an [`OpenFile`](crate::OpenFile):
//! they generate the methods that a wrapper passes on unchanged. A wrapper names these methods, so
//! that each new method of the trait is passed on deliberately.
//!
//! No locks.

pub use forebay_base::buf::AlignedBuf;
pub use forebay_base::task::BoxFuture;
pub use forebay_base::{IoFlags, Result};

/// Generates the named methods of [`FileSystem`](crate::FileSystem) in its `impl` for a wrapper.
/// The brackets contain the expression after `self.` that denotes the inner file system. With
/// parentheses instead, each method fails with what the function in them returns for its name.
///
/// ```
/// # use forebay_base::{Result, task::BoxFuture};
/// # use forebay_vfs::*;
/// struct Wrapper { fs: std::sync::Arc<dyn FileSystem> }
/// impl Wrapper {
///     forebay_vfs::delegate_file_system!([fs] statfs syncfs);
/// }
/// ```
#[macro_export]
macro_rules! delegate_file_system {
    ($to:tt $($name:ident)+) => { $($crate::delegate_file_system!(@ $name $to);)+ };

    (@ statfs $to:tt) => { $crate::delegate_file_system!(@@ $to statfs() -> $crate::StatFs); };
    (@ lookup $to:tt) => {
        $crate::delegate_file_system!(@@ $to
            lookup(dir: $crate::Ino, name: $crate::Name<'a>) -> $crate::Attr);
    };
    (@ parent $to:tt) => {
        $crate::delegate_file_system!(@@ $to parent(dir: $crate::Ino) -> $crate::Ino);
    };
    (@ getattr $to:tt) => {
        $crate::delegate_file_system!(@@ $to getattr(ino: $crate::Ino) -> $crate::Attr);
    };
    (@ setattr $to:tt) => {
        $crate::delegate_file_system!(@@ $to
            setattr(ino: $crate::Ino, set: &'a $crate::SetAttr) -> $crate::Attr);
    };
    (@ mknod $to:tt) => {
        $crate::delegate_file_system!(@@ $to
            mknod(dir: $crate::Ino, name: $crate::Name<'a>, new: &'a $crate::NewInode) -> $crate::Attr);
    };
    (@ mkdir $to:tt) => {
        $crate::delegate_file_system!(@@ $to
            mkdir(dir: $crate::Ino, name: $crate::Name<'a>, new: &'a $crate::NewInode) -> $crate::Attr);
    };
    (@ symlink $to:tt) => {
        $crate::delegate_file_system!(@@ $to symlink(
            dir: $crate::Ino, name: $crate::Name<'a>, target: &'a [u8], new: &'a $crate::NewInode
        ) -> $crate::Attr);
    };
    (@ tmpfile $to:tt) => {
        $crate::delegate_file_system!(@@ $to
            tmpfile(dir: $crate::Ino, new: &'a $crate::NewInode, flags: $crate::OpenFlags)
            -> ($crate::Attr, $crate::OpenFileRef));
    };
    (@ link $to:tt) => {
        $crate::delegate_file_system!(@@ $to
            link(ino: $crate::Ino, dir: $crate::Ino, name: $crate::Name<'a>) -> $crate::Attr);
    };
    (@ unlink $to:tt) => {
        $crate::delegate_file_system!(@@ $to
            unlink(dir: $crate::Ino, name: $crate::Name<'a>) -> ());
    };
    (@ rmdir $to:tt) => {
        $crate::delegate_file_system!(@@ $to rmdir(dir: $crate::Ino, name: $crate::Name<'a>) -> ());
    };
    (@ rename $to:tt) => {
        $crate::delegate_file_system!(@@ $to rename(
            dir: $crate::Ino, name: $crate::Name<'a>, new_dir: $crate::Ino,
            new_name: $crate::Name<'a>, flags: $crate::RenameFlags
        ) -> ());
    };
    (@ remove_keeping [$($to:tt)+]) => {
        fn remove_keeping<'a>(
            &'a self,
            dir: $crate::Ino,
            name: $crate::Name<'a>,
            is_directory: bool,
            keeps: $crate::KeepInode<'a>,
        ) -> $crate::delegate::BoxFuture<'a, $crate::delegate::Result<Option<$crate::OpenFileRef>>>
        {
            self.$($to)+.remove_keeping(dir, name, is_directory, keeps)
        }
    };
    (@ rename_keeping [$($to:tt)+]) => {
        fn rename_keeping<'a>(
            &'a self,
            from: ($crate::Ino, $crate::Name<'a>),
            to: ($crate::Ino, $crate::Name<'a>),
            flags: $crate::RenameFlags,
            keeps: $crate::KeepInode<'a>,
        ) -> $crate::delegate::BoxFuture<'a, $crate::delegate::Result<Option<$crate::OpenFileRef>>>
        {
            self.$($to)+.rename_keeping(from, to, flags, keeps)
        }
    };
    (@ readlink $to:tt) => {
        $crate::delegate_file_system!(@@ $to readlink(ino: $crate::Ino) -> Vec<u8>);
    };
    (@ readdir $to:tt) => {
        $crate::delegate_file_system!(@@ $to
            readdir(dir: $crate::Ino, after: $crate::Cookie, max: usize) -> Vec<$crate::DirEntry>);
    };
    (@ getxattr $to:tt) => {
        $crate::delegate_file_system!(@@ $to
            getxattr(ino: $crate::Ino, name: $crate::XattrName<'a>) -> Vec<u8>);
    };
    (@ setxattr $to:tt) => {
        $crate::delegate_file_system!(@@ $to setxattr(
            ino: $crate::Ino, name: $crate::XattrName<'a>, value: &'a [u8], how: $crate::SetXattr
        ) -> ());
    };
    (@ listxattr $to:tt) => {
        $crate::delegate_file_system!(@@ $to listxattr(ino: $crate::Ino) -> Vec<Box<[u8]>>);
    };
    (@ removexattr $to:tt) => {
        $crate::delegate_file_system!(@@ $to
            removexattr(ino: $crate::Ino, name: $crate::XattrName<'a>) -> ());
    };
    (@ open $to:tt) => {
        $crate::delegate_file_system!(@@ $to
            open(ino: $crate::Ino, flags: $crate::OpenFlags) -> $crate::OpenFileRef);
    };
    (@ open_with_xattr $to:tt) => {
        $crate::delegate_file_system!(@@ $to open_with_xattr(
            ino: $crate::Ino, flags: $crate::OpenFlags, name: $crate::XattrName<'a>
        ) -> $crate::Opened);
    };
    (@ create_with_xattr $to:tt) => {
        $crate::delegate_file_system!(@@ $to create_with_xattr(
            dir: $crate::Ino, name: $crate::Name<'a>, new: &'a $crate::NewInode,
            flags: $crate::OpenFlags, xattr: $crate::XattrName<'a>
        ) -> $crate::Opened);
    };
    (@ syncfs $to:tt) => { $crate::delegate_file_system!(@@ $to syncfs() -> ()); };
    (@ getattr_listed [$($to:tt)+]) => {
        fn getattr_listed<'a>(
            &'a self,
            inos: &'a [$crate::Ino],
        ) -> $crate::delegate::BoxFuture<'a, Vec<$crate::delegate::Result<$crate::Attr>>> {
            self.$($to)+.getattr_listed(inos)
        }
    };

    (@ create $to:tt) => {
        $crate::delegate_file_system!(@@ $to create(
            dir: $crate::Ino, name: $crate::Name<'a>, new: &'a $crate::NewInode,
            flags: $crate::OpenFlags
        ) -> ($crate::Attr, $crate::OpenFileRef));
    };

    (@@ [$($to:tt)+] $name:ident($($arg:ident: $kind:ty),*) -> $result:ty) => {
        fn $name<'a>(
            &'a self,
            $($arg: $kind),*
        ) -> $crate::delegate::BoxFuture<'a, $crate::delegate::Result<$result>> {
            self.$($to)+.$name($($arg),*)
        }
    };
    (@@ ($error:path) $name:ident($($arg:ident: $kind:ty),*) -> $result:ty) => {
        fn $name<'a>(
            &'a self,
            $(_: $kind),*
        ) -> $crate::delegate::BoxFuture<'a, $crate::delegate::Result<$result>> {
            Box::pin(std::future::ready(Err($error(stringify!($name)))))
        }
    };
}

/// Generates the named methods of [`OpenFile`](crate::OpenFile) in its `impl` for a wrapper. The
/// brackets contain the expression after `self.` that denotes the inner file.
#[macro_export]
macro_rules! delegate_open_file {
    ($to:tt $($name:ident)+) => { $($crate::delegate_open_file!(@ $name $to);)+ };

    (@ ino [$($to:tt)+]) => {
        fn ino(&self) -> $crate::Ino {
            self.$($to)+.ino()
        }
    };
    (@ flags [$($to:tt)+]) => {
        fn flags(&self) -> $crate::OpenFlags {
            self.$($to)+.flags()
        }
    };
    (@ try_read [$($to:tt)+]) => {
        fn try_read(
            &self,
            offset: u64,
            dst: &mut [u8],
            flags: $crate::delegate::IoFlags,
        ) -> Option<$crate::delegate::Result<usize>> {
            self.$($to)+.try_read(offset, dst, flags)
        }
    };
    (@ read [$($to:tt)+]) => {
        fn read(
            &self,
            offset: u64,
            buf: $crate::delegate::AlignedBuf,
            flags: $crate::delegate::IoFlags,
        ) -> $crate::delegate::BoxFuture<'_, $crate::ReadResult> {
            self.$($to)+.read(offset, buf, flags)
        }
    };
    (@ read_slice [$($to:tt)+]) => {
        fn read_slice(
            &self,
            offset: u64,
            dst: &mut [u8],
            flags: $crate::delegate::IoFlags,
        ) -> $crate::delegate::Result<usize> {
            self.$($to)+.read_slice(offset, dst, flags)
        }
    };
    (@ wait_read [$($to:tt)+]) => {
        fn wait_read(
            &self,
            offset: u64,
            dst: &mut [u8],
            flags: $crate::delegate::IoFlags,
        ) -> $crate::delegate::Result<usize> {
            self.$($to)+.wait_read(offset, dst, flags)
        }
    };
    (@ write [$($to:tt)+]) => {
        fn write(
            &self,
            offset: u64,
            buf: $crate::delegate::AlignedBuf,
            flags: $crate::delegate::IoFlags,
            privileges: $crate::Privileges,
        ) -> $crate::delegate::BoxFuture<'_, $crate::WriteResult> {
            self.$($to)+.write(offset, buf, flags, privileges)
        }
    };
    (@ fallocate [$($to:tt)+]) => {
        fn fallocate(
            &self,
            how: $crate::Fallocate,
            offset: u64,
            len: u64,
            privileges: $crate::Privileges,
        ) -> $crate::delegate::BoxFuture<'_, $crate::delegate::Result<()>> {
            self.$($to)+.fallocate(how, offset, len, privileges)
        }
    };
    (@ seek [$($to:tt)+]) => {
        fn seek(
            &self,
            what: $crate::Seek,
            offset: u64,
        ) -> $crate::delegate::BoxFuture<'_, $crate::delegate::Result<u64>> {
            self.$($to)+.seek(what, offset)
        }
    };
    (@ sync [$($to:tt)+]) => {
        fn sync(
            &self,
            data_only: bool,
        ) -> $crate::delegate::BoxFuture<'_, $crate::delegate::Result<()>> {
            self.$($to)+.sync(data_only)
        }
    };
    (@ sync_waiting [$($to:tt)+]) => {
        fn sync_waiting(
            &self,
            data_only: bool,
        ) -> $crate::delegate::BoxFuture<'_, $crate::delegate::Result<()>> {
            self.$($to)+.sync_waiting(data_only)
        }
    };
}
