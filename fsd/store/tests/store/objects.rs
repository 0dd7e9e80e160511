//! What the store reads is what git reads, however the objects lie on the disk, and broken objects are errors that leave the rest alone.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result, ensure};
use gitmount_store::Fault;
use gitmount_store::ids::{CommitId, ObjectId};
use gitmount_store::local::LocalRepository;
use gitmount_store::objects::{EntryKind, Objects};
use gitmount_store::path::RepoPath;
use gitmount_tests::fixtures::{self, content, hostile, names, storage};
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;

/// Path, mode as git prints it, and id of everything below a tree.
type Listing = BTreeMap<Vec<u8>, (String, String)>;

fn ours(objects: &Objects, tree: ObjectId, at: &[u8], listing: &mut Listing) -> Result<()> {
    for entry in objects.tree(tree)?.entries() {
        let path = [at, entry.name.as_slice()].concat();
        let mode = match entry.kind {
            EntryKind::File => "100644",
            EntryKind::Executable => "100755",
            EntryKind::Symlink => "120000",
            EntryKind::Submodule => "160000",
            EntryKind::Directory => {
                ours(objects, entry.id, &[&path, &b"/"[..]].concat(), listing)?;
                continue;
            }
        };
        listing.insert(path, (mode.into(), entry.id.to_string()));
    }
    Ok(())
}

fn gits(repo: &Repo) -> Result<Listing> {
    let mut listing = Listing::new();
    for line in repo.run(["ls-tree", "-r", "-z", "HEAD"])?.split(|byte| *byte == 0).filter(|line| !line.is_empty()) {
        let tab = line.iter().position(|byte| *byte == b'\t').context("git separates by a tab")?;
        let meta = std::str::from_utf8(&line[..tab])?;
        let mut words = meta.split(' ');
        let (mode, id) = (words.next().context("mode")?, words.nth(1).context("id")?);
        listing.insert(line[tab + 1..].to_vec(), (mode.into(), id.into()));
    }
    Ok(listing)
}

#[test]
fn trees_and_blobs_are_those_of_git() -> Result<()> {
    let all: [(&str, fixtures::Build); 5] = [
        ("mixed", storage::mixed),
        ("deltas", storage::deltas),
        ("alternates", storage::alternates),
        ("names", names::names),
        ("content", content::content),
    ];
    for (name, build) in all {
        let repo = fixtures::get(name, build)?;
        let local = LocalRepository::discover(repo.path())?;
        let objects = local.objects();
        let commit = local.resolve("HEAD")?;
        let mut listing = Listing::new();
        let root = objects.commit(commit)?.tree;
        ours(&objects, root, b"", &mut listing)?;
        ensure!(listing == gits(&repo)?, "{name}: the trees differ");
        let scratch = tempfile::tempdir()?;
        for (mode, id) in listing.values().filter(|(mode, _)| mode != "160000") {
            let expected = repo.run(["cat-file", "blob", id])?;
            let id = ObjectId::from_hex(id.as_bytes())?;
            ensure!(objects.blob_size(id)? == expected.len() as u64, "{name} {id} {mode}");
            ensure!(objects.blob(id)? == expected, "{name} {id} {mode}");
            let mut streamed = Vec::new();
            ensure!(objects.blob_to(id, scratch.path(), &mut streamed)? == expected.len() as u64);
            ensure!(streamed == expected, "{name} {id} {mode} as a stream");
        }
        ensure!(std::fs::read_dir(scratch.path())?.next().is_none(), "temporary files stay");
    }
    Ok(())
}

#[test]
fn commits_have_their_tree_and_time() -> Result<()> {
    let repo = fixtures::get("mixed", storage::mixed)?;
    let local = LocalRepository::discover(repo.path())?;
    for commit in repo.line(["rev-list", "main"])?.lines() {
        let info = local.objects().commit(CommitId::parse(commit)?)?;
        ensure!(info.tree.to_string() == repo.id(&format!("{commit}^{{tree}}"))?);
        let seconds = info.time.duration_since(std::time::UNIX_EPOCH)?.as_secs();
        ensure!(seconds.to_string() == repo.line(["show", "-s", "--format=%ct", commit])?);
    }
    Ok(())
}

#[test]
fn a_path_is_walked_or_refused_with_its_reason() -> Result<()> {
    let repo = fixtures::get("mixed", storage::mixed)?;
    let local = LocalRepository::discover(repo.path())?;
    let objects = local.objects();
    let root = objects.commit(local.resolve("main")?)?.tree;
    let at = |path: &str| objects.tree_at(root, &RepoPath::parse(path).expect("a path"));
    ensure!(at("")? == root);
    ensure!(at("round-2/")?.to_string() == repo.id("main:round-2")?);
    for (path, reason) in [("absent", "does not exist"), ("round-2/absent", "does not exist"), ("round-2/file-1", "is a file")] {
        let error = at(path).err().with_context(|| format!("{path} is a directory"))?;
        ensure!(error.fault() == Fault::NotFound && error.to_string().contains(reason), "{path}: {error}");
    }
    Ok(())
}

#[test]
fn hostile_trees_are_refused_and_the_rest_is_read() -> Result<()> {
    let repo = fixtures::get("hostile", hostile::hostile)?;
    let local = LocalRepository::discover(repo.path())?;
    let objects = local.objects();
    let root = objects.commit(local.resolve("HEAD")?)?.tree;
    let mut refused = 0;
    for entry in objects.tree(root)?.entries() {
        match objects.tree(entry.id) {
            Ok(tree) => ensure!(entry.name == "good" && tree.entries().len() == 1, "{} is accepted", entry.name),
            Err(error) => {
                ensure!(error.fault() == Fault::Corrupt && error.to_string().contains(&entry.id.to_string()), "{}: {error}", entry.name);
                refused += 1;
            }
        }
    }
    ensure!(refused == hostile::BAD.len() + 3, "{refused} directories were refused");
    Ok(())
}

/// A blob with a base of its own size, in a pack where the second is a delta of the first.
fn big_delta() -> Result<(tempfile::TempDir, Repo, [String; 2])> {
    let dir = gitmount_tests::scratch::dir()?;
    let repo = Repo::init_bare(dir.path().join("big.git"))?;
    let mut big = content::noise(40 << 20);
    let first = repo.write_object("blob", &big)?;
    big[1000] ^= 1;
    big.extend_from_slice(b"and a bit more");
    big[30 << 20] ^= 1;
    let second = repo.write_object("blob", &big)?;
    let list = format!("{first} big\n{second} big\n");
    repo.feed(["-c", "core.bigFileThreshold=1g", "pack-objects", "--window=10", "--depth=50", "-q", "objects/pack/pack"], list.as_bytes())?;
    repo.run(["prune-packed"])?;
    let index = std::fs::read_dir(repo.path().join("objects/pack"))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|e| e == "idx"))
        .context("there is a pack")?;
    let chains = repo.line([std::ffi::OsStr::new("verify-pack"), "-v".as_ref(), index.as_os_str()])?;
    ensure!(chains.contains("chain length = 1: 1 object"), "git made no delta: {chains}");
    Ok((dir, repo, [first, second]))
}

#[test]
fn a_big_deltified_blob_is_streamed_and_read_whole() -> Result<()> {
    let (_dir, repo, ids) = big_delta()?;
    let objects = LocalRepository::discover(repo.path())?.objects();
    let scratch = tempfile::tempdir()?;
    for id in ids {
        let expected = repo.run(["cat-file", "blob", &id])?;
        let id = ObjectId::from_hex(id.as_bytes())?;
        let mut streamed = Vec::new();
        ensure!(objects.blob_to(id, scratch.path(), &mut streamed)? == expected.len() as u64 && streamed == expected);
        ensure!(objects.blob(id)? == expected);
    }
    Ok(())
}

#[test]
fn a_stream_that_cannot_be_written_is_an_error_of_the_disk() -> Result<()> {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let repo = fixtures::get("mixed", storage::mixed)?;
    let objects = LocalRepository::discover(repo.path())?.objects();
    let id = ObjectId::from_hex(repo.id("main:round-0/file-1")?.as_bytes())?;
    let error = objects.blob_to(id, &std::env::temp_dir(), &mut Full).err().context("nothing can be written")?;
    ensure!(error.fault() == Fault::Disk, "{error}");
    Ok(())
}

#[test]
fn packs_that_come_and_go_under_a_reader() -> Result<()> {
    let (_dir, repo) = fixtures::copy("mixed", storage::mixed)?;
    let local = LocalRepository::discover(repo.path())?;
    let objects = local.objects();
    let all: Vec<ObjectId> = repo
        .line(["rev-list", "--objects", "--no-object-names", "--filter=object:type=blob", "--filter-provided-objects", "main"])?
        .lines()
        .map(|id| ObjectId::from_hex(id.as_bytes()))
        .collect::<Result<_, _>>()?;
    objects.blob(all[0])?;
    repo.run(["repack", "-a", "-d", "-f", "--quiet"])?;
    repo.run(["prune-packed"])?;
    for id in &all {
        objects.blob(*id)?;
    }
    let mut import = Import::into(&repo)?;
    import.commit("refs/heads/main", "New")?;
    for n in 0..200 {
        import.file(format!("new/{n}").as_bytes(), format!("new {n}\n"))?;
    }
    import.finish()?;
    let new = ObjectId::from_hex(repo.id("main:new/150")?.as_bytes())?;
    ensure!(objects.blob(new)? == b"new 150\n");
    Ok(())
}

#[test]
fn missing_and_broken_objects_are_errors_and_the_rest_is_read() -> Result<()> {
    let (_dir, repo) = fixtures::copy("mixed", storage::mixed)?;
    let objects = LocalRepository::discover(repo.path())?.objects();
    let [broken, missing, cut, good] = [
        repo.write_object("blob", b"will be broken")?,
        repo.write_object("blob", b"will be missing")?,
        repo.write_object("blob", b"will be cut off")?,
        repo.write_object("blob", b"stays")?,
    ];
    let overwrite = |id: &str, bytes: &[u8]| -> Result<()> {
        let path = repo.loose_object(id);
        std::fs::remove_file(&path)?;
        Ok(std::fs::write(path, bytes)?)
    };
    overwrite(&broken, b"no zlib stream")?;
    let whole = std::fs::read(repo.loose_object(&cut))?;
    overwrite(&cut, &whole[..whole.len() - 6])?;
    std::fs::remove_file(repo.loose_object(&missing))?;
    for id in [&broken, &missing, &cut] {
        let id = ObjectId::from_hex(id.as_bytes())?;
        let error = objects.blob(id).err().context("it cannot be read")?;
        ensure!(error.fault() == Fault::Corrupt && error.to_string().contains(&id.to_string()[2..]), "{error}");
        ensure!(objects.blob_to(id, &std::env::temp_dir(), &mut Vec::new()).is_err());
    }
    ensure!(objects.blob(ObjectId::from_hex(good.as_bytes())?)? == b"stays");
    let tree = ObjectId::from_hex(repo.id("main^{tree}")?.as_bytes())?;
    let error = objects.blob(tree).err().context("a tree is no blob")?;
    ensure!(error.to_string().contains("is a tree, where a blob must be"), "{error}");
    Ok(())
}

#[test]
fn every_cut_and_flipped_byte_of_a_pack_is_survived() -> Result<()> {
    let repo = fixtures::get("deltas", storage::deltas)?;
    let dir = gitmount_tests::scratch::dir()?;
    let copy = Repo::init_bare(dir.path().join("broken.git"))?;
    let source = repo.path().join("objects/pack");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&source)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "pack" || e == "idx") {
            names.push(path.file_name().context("a file has a name")?.to_owned());
        }
    }
    let ids: Vec<ObjectId> = repo
        .line(["cat-file", "--batch-all-objects", "--batch-check=%(objectname)"])?
        .lines()
        .map(|id| ObjectId::from_hex(id.as_bytes()))
        .collect::<Result<_, _>>()?;
    for round in 0..60usize {
        for name in &names {
            let mut bytes = std::fs::read(source.join(name))?;
            let at = (round * 7919 + 13) % bytes.len();
            bytes[at] ^= 1 << (round % 8);
            if round % 10 == 9 {
                bytes.truncate(at);
            }
            let path = copy.path().join("objects/pack").join(name);
            let _ = std::fs::remove_file(&path);
            std::fs::write(path, bytes)?;
        }
        let objects = LocalRepository::discover(copy.path())?.objects();
        for id in &ids {
            // Right, or an error: never a panic.
            let _ = objects.blob_size(*id);
            let _ = objects.blob(*id);
            let _ = objects.tree(*id);
            let _ = objects.blob_to(*id, dir.path(), &mut std::io::sink());
        }
    }
    Ok(())
}
