//! From FUSE requests to [`FileSystem`] and back.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bstr::ByteSlice;
use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use gitmount_store::objects::EntryKind;

use super::MountOptions;
use super::counts::{Operation, Requests};
use super::features::{Feature, Features};
use crate::fs::{Attr, FileSystem, FsError};
use crate::inode::NodeId;

/// Never expires: what a node id stands for does not change. (Not the largest number: the kernel computes with it.)
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// While a switch is pending.
const NOTHING: Duration = Duration::ZERO;
const BLOCK: u64 = 512;
const FRAGMENT: u64 = 4096;
/// Read requests the kernel may have under way for read-ahead.
const MAX_BACKGROUND: u16 = 64;

/// What fuser calls.
#[derive(Debug)]
pub(super) struct Adapter {
    fs: Arc<FileSystem>,
    requests: Arc<Requests>,
    features: Arc<Features>,
    allow_other: bool,
    without: Vec<Feature>,
}

fn errno(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::ENOENT,
        FsError::Stale => Errno::ESTALE,
        FsError::NotDirectory => Errno::ENOTDIR,
        FsError::IsDirectory => Errno::EISDIR,
        FsError::NotLink => Errno::EINVAL,
        FsError::LinkTooLong => Errno::ENAMETOOLONG,
        FsError::NoAttribute => Errno::ENODATA,
        FsError::NoSpace => Errno::ENOSPC,
        FsError::Store(error) => {
            tracing::warn!(%error, "an object cannot be read");
            Errno::EIO
        }
    }
}

fn node(ino: INodeNo) -> NodeId {
    NodeId(ino.0)
}

fn lifetime(pending: bool) -> Duration {
    if pending { NOTHING } else { FOREVER }
}

fn file_type(kind: EntryKind) -> FileType {
    match kind {
        EntryKind::File | EntryKind::Executable => FileType::RegularFile,
        EntryKind::Symlink => FileType::Symlink,
        EntryKind::Directory | EntryKind::Submodule => FileType::Directory,
    }
}

impl Adapter {
    pub(super) fn new(fs: Arc<FileSystem>, requests: Arc<Requests>, options: &MountOptions) -> Self {
        let MountOptions { allow_other, without, .. } = options.clone();
        Adapter { fs, requests, features: Arc::default(), allow_other, without }
    }

    pub(super) fn features(&self) -> Arc<Features> {
        self.features.clone()
    }

    fn file_attr(&self, attr: &Attr) -> FileAttr {
        let options = self.fs.view().options();
        let time = UNIX_EPOCH + Duration::from_nanos(u64::try_from(attr.time.0).unwrap_or(0));
        FileAttr {
            ino: INodeNo(attr.node.0),
            size: attr.size,
            blocks: attr.size.div_ceil(BLOCK),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: file_type(attr.kind),
            perm: match attr.kind {
                EntryKind::File => 0o644,
                EntryKind::Symlink => 0o777,
                EntryKind::Executable | EntryKind::Directory | EntryKind::Submodule => 0o755,
            },
            nlink: attr.nlink,
            uid: options.uid,
            gid: options.gid,
            rdev: 0,
            blksize: FRAGMENT as u32,
            flags: 0,
        }
    }

    /// An entry that is absent (node id 0).
    fn no_entry(&self) -> FileAttr {
        let absent = Attr { node: NodeId(0), kind: EntryKind::File, size: 0, time: crate::inode::Time(0), nlink: 0 };
        self.file_attr(&absent)
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = config.capabilities();
        // Listings are cached only as long as their directory's time is the same.
        let basic = InitFlags::FUSE_PARALLEL_DIROPS | InitFlags::FUSE_AUTO_INVAL_DATA;
        let mut wanted = Feature::ALL.to_vec();
        if !self.allow_other {
            // With it requests carry no user id, so only without a check of the owner.
            wanted.retain(|feature| *feature != Feature::AllowIdmap);
        }
        let asked = wanted.iter().filter(|feature| !self.without.contains(feature)).fold(basic, |all, f| all | f.flag());
        let granted = asked & offered;
        if config.add_capabilities(granted).is_err() {
            return Err(io::Error::other("the kernel does not grant what it offered"));
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        self.features.agree(&wanted, granted);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _busy = self.requests.begin(Operation::Lookup);
        let inside = self.fs.view().gate().enter();
        let ttl = lifetime(inside.pending);
        match self.fs.lookup(node(parent), name.as_bytes().as_bstr()) {
            Ok(Some(attr)) => reply.entry(&ttl, &self.file_attr(&attr), Generation(0)),
            Ok(None) => reply.entry(&ttl, &self.no_entry(), Generation(0)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        let _busy = self.requests.begin(Operation::Forget);
        self.fs.forget(node(ino), count);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let _busy = self.requests.begin(Operation::Getattr);
        let inside = self.fs.view().gate().enter();
        match self.fs.attr(node(ino)) {
            Ok(attr) => reply.attr(&lifetime(inside.pending), &self.file_attr(&attr)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let _busy = self.requests.begin(Operation::Readlink);
        match self.fs.link(node(ino)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let _busy = self.requests.begin(Operation::Open);
        if self.features.have(Feature::NoOpen) {
            reply.error(Errno::ENOSYS);
        } else {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
        }
    }

    fn read(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, size: u32, _: OpenFlags, _: Option<LockOwner>, reply: ReplyData) {
        let mut busy = self.requests.begin(Operation::Read);
        let answering = busy.answering();
        self.fs.read(node(ino), offset, size, move |result| {
            match result {
                Ok(data) => reply.data(data),
                Err(error) => reply.error(errno(&error)),
            }
            drop(answering);
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let _busy = self.requests.begin(Operation::Other);
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let _busy = self.requests.begin(Operation::Opendir);
        if self.features.have(Feature::NoOpendir) {
            reply.error(Errno::ENOSYS);
        } else {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let _busy = self.requests.begin(Operation::Readdir);
        let _inside = self.fs.view().gate().enter();
        let listed = self.fs.list(node(ino), offset, false, &mut |line| {
            !reply.add(INodeNo(line.node.0), line.cookie, file_type(line.kind), OsStr::from_bytes(line.name))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdirplus(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let _busy = self.requests.begin(Operation::Readdirplus);
        let inside = self.fs.view().gate().enter();
        let ttl = lifetime(inside.pending);
        let listed = self.fs.list(node(ino), offset, true, &mut |line| {
            let attr = match &line.attr {
                Some(attr) => self.file_attr(attr),
                // Only named. A node id of 0 would be `d_ino` too, and readers skip such entries; with a size that cannot be, the kernel
                // lists the entry and forgets the node instead of linking it.
                None => FileAttr { ino: INodeNo(line.node.0), size: u64::MAX, kind: file_type(line.kind), ..self.no_entry() },
            };
            !reply.add(INodeNo(line.node.0), line.cookie, OsStr::from_bytes(line.name), &ttl, &attr, Generation(0))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let _busy = self.requests.begin(Operation::Statfs);
        match self.fs.usage() {
            Ok(usage) => {
                let blocks = usage.bytes.div_ceil(FRAGMENT);
                reply.statfs(blocks, 0, 0, usage.files, 0, FRAGMENT as u32, 255, FRAGMENT as u32);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _busy = self.requests.begin(Operation::Write);
        reply.error(Errno::EROFS);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        let _busy = self.requests.begin(Operation::Write);
        reply.error(Errno::EROFS);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let _busy = self.requests.begin(Operation::Write);
        reply.error(Errno::EROFS);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        let _busy = self.requests.begin(Operation::Write);
        reply.error(Errno::EROFS);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        let _busy = self.requests.begin(Operation::Write);
        reply.error(Errno::EROFS);
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        let _busy = self.requests.begin(Operation::Write);
        reply.error(Errno::EROFS);
    }

    fn rename(&self, _: &Request, _: INodeNo, _: &OsStr, _: INodeNo, _: &OsStr, _: RenameFlags, reply: ReplyEmpty) {
        let _busy = self.requests.begin(Operation::Write);
        reply.error(Errno::EROFS);
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        let _busy = self.requests.begin(Operation::Write);
        reply.error(Errno::EROFS);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _busy = self.requests.begin(Operation::Write);
        reply.error(Errno::EROFS);
    }

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        let _busy = self.requests.begin(Operation::Write);
        reply.error(Errno::EROFS);
    }

    fn setxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: &[u8], _: i32, _: u32, reply: ReplyEmpty) {
        let _busy = self.requests.begin(Operation::Write);
        reply.error(Errno::EROFS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        let _busy = self.requests.begin(Operation::Write);
        reply.error(Errno::EROFS);
    }

    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, _: u64, _: i32, reply: ReplyEmpty) {
        let _busy = self.requests.begin(Operation::Write);
        reply.error(Errno::EROFS);
    }

    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, _: i64, _: i32, reply: ReplyLseek) {
        // ENOSYS makes the kernel look for holes by itself: there are none.
        let _busy = self.requests.begin(Operation::Lseek);
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _busy = self.requests.begin(Operation::Getxattr);
        match self.fs.xattr(node(ino), name.as_bytes().as_bstr()) {
            Ok(value) => answer_xattr(&value, size, reply),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _busy = self.requests.begin(Operation::Listxattr);
        answer_xattr(&self.fs.xattr_names(node(ino)), size, reply);
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        let _busy = self.requests.begin(Operation::Access);
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(&self, _: &Request, _: INodeNo, _: FileHandle, _: IoctlFlags, _: u32, _: &[u8], _: u32, reply: ReplyIoctl) {
        let _busy = self.requests.begin(Operation::Ioctl);
        reply.error(Errno::ENOTTY);
    }
}

fn answer_xattr(value: &[u8], size: u32, reply: ReplyXattr) {
    match size {
        0 => reply.size(value.len() as u32),
        size if (size as usize) < value.len() => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}
