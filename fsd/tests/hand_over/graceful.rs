//! A server that stops for another one answers what it has read, leaves no thread behind, and the mount stays.

use std::fs::{self, File};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use gitmount_fsd::fuse::{Mount, unmount};
use gitmount_fsd::view::View;
use gitmount_store::local::LocalRepository;
use gitmount_tests::mount::is_mounted;
use gitmount_tests::run::wait_for;
use gitmount_tests::torture::epochs::Epochs;
use gitmount_tests::torture::readers::Readers;

use crate::server::{SOON, Scene};

#[test]
fn readers_notice_no_stop() -> Result<()> {
    let scene = Scene::new()?;
    let epochs = std::sync::Arc::new(Epochs::new(0));
    let readers = Readers::start(4, &scene.home.target(), &scene.history, &epochs)?;
    for next in 1..6 {
        scene.stop_server()?;
        scene.serve()?;
        let epoch = epochs.begin(next);
        scene.point(next)?;
        scene.wait_for(next)?;
        epochs.finish(epoch);
    }
    readers.finish().map(drop)
}

fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("fuse"))).count()
}

#[test]
fn one_process_may_stop_and_go_on() -> Result<()> {
    let scene = Scene::new()?;
    scene.kill_server()?;
    unmount(&scene.home.target(), true)?;
    let (view, options) = scene.home.options();
    let repository = LocalRepository::discover(&scene.home.repository())?;
    let kept = Mutex::new(None);
    let first = View::new(repository.objects(), repository.resolve("refs/heads/served")?, view.clone())?;
    let mut mount = Mount::begin(first, &options, &|device, init| {
        *kept.lock().expect("no panic") = Some((device.try_clone_to_owned()?, init.to_vec()));
        Ok(())
    })?;
    let (device, init) = kept.into_inner()?.context("is deposited")?;
    let working = threads();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        // A process that waits for itself could not be stopped: files that are read here are known to the kernel.
        let reader = scope.spawn(|| -> Result<()> {
            while !stop.load(Ordering::SeqCst) {
                for entry in fs::read_dir(options.target.as_path())? {
                    entry?.metadata()?;
                }
            }
            Ok(())
        });
        let outcome = (|| -> Result<()> {
            for _ in 0..5 {
                mount.detach();
                ensure!(mount.is_finished() && threads() == 0, "{} threads are left of {working}", threads());
                ensure!(is_mounted(&options.target)?);
                let view = View::resume(repository.objects(), view.clone())?;
                mount = Mount::resume(view, &options, device.try_clone()?, &init)?;
            }
            Ok(())
        })();
        stop.store(true, Ordering::SeqCst);
        reader.join().ok().context("the reader panicked")??;
        outcome
    })?;
    File::open(&options.target)?;
    mount.unmount(true)?;
    wait_for("the end of the session", SOON, || mount.is_finished().then_some(()))
}

#[test]
fn what_is_unmounted_cannot_be_resumed() -> Result<()> {
    let scene = Scene::new()?;
    let held = gitmount_fsd::handover::Holder::connect(&scene.home.socket())?.collect()?.pop().context("is held")?;
    scene.kill_server()?;
    unmount(&scene.home.target(), true)?;
    let (view, options) = scene.home.options();
    let repository = LocalRepository::discover(&scene.home.repository())?;
    let view = View::resume(repository.objects(), view)?;
    let error = Mount::resume(view, &options, held.device, &held.init).expect_err("is gone");
    ensure!(error.kind() == std::io::ErrorKind::NotConnected, "{error}");
    let empty = || gitmount_fsd::handover::Holder::connect(&scene.home.socket()).ok()?.collect().ok().filter(Vec::is_empty);
    wait_for("the holder to drop it", SOON, empty).map(drop)
}
