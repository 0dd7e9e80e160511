//! A process that serves one mount and follows a ref, with a journal and a holder: this very test program, started for [`serve`] alone.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_fsd::fuse::{Mount, MountOptions, unmount};
use gitmount_fsd::handover::{Deposit, Keeper};
use gitmount_fsd::view::{View, ViewOptions};
use gitmount_store::local::LocalRepository;
use gitmount_tests::git::Repo;
use gitmount_tests::mount::{gitmount, is_mounted};
use gitmount_tests::run::{start, wait_for};
use gitmount_tests::scratch;
use gitmount_tests::torture::history::History;
use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;

const HOME: &str = "GITMOUNT_TEST_SERVES";
const SERVED: &str = "refs/heads/served";
const ID: &str = "the mount";
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Where everything of one mount is.
#[derive(Debug, Clone)]
pub(crate) struct Home(PathBuf);

impl Home {
    pub(crate) fn target(&self) -> PathBuf {
        self.0.join("mnt")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("hold.sock")
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.0.join("r.git")
    }

    fn ready(&self, process: u32) -> PathBuf {
        self.0.join(format!("ready-{process}"))
    }

    pub(crate) fn options(&self) -> (ViewOptions, MountOptions) {
        let mut view = ViewOptions::new("served", self.0.join("spool"));
        view.journal = Some(self.0.join("nodes"));
        (view, MountOptions::new(self.target(), "test"))
    }
}

/// The server: does nothing unless it was started by [`Scene::serve`].
#[test]
fn serve() {
    let Some(home) = std::env::var_os(HOME) else { return };
    run(&Home(home.into())).expect("serves until it is killed");
}

fn run(home: &Home) -> Result<()> {
    let repository = LocalRepository::discover(&home.repository())?;
    let keeper = Keeper::new(&home.socket())?;
    let held = keeper.collect()?.into_iter().find(|held| held.id == ID);
    let (view, options) = home.options();
    let mount = match held {
        Some(held) => Mount::resume(View::resume(repository.objects(), view)?, &options, held.device, &held.init)?,
        None => {
            let view = View::new(repository.objects(), repository.resolve(SERVED)?, view)?;
            Mount::begin(view, &options, &|device, init| {
                keeper.deposit(&Deposit { id: ID.into(), init: init.to_vec(), device: device.as_fd() })
            })?
        }
    };
    mount.notify_through(keeper.messenger(ID));
    mount.store_through(keeper.courier(ID));
    std::fs::write(home.ready(std::process::id()), if keeper.is_holding(ID) { "held" } else { "alone" })?;
    while !mount.is_finished() {
        let commit = repository.resolve(SERVED)?;
        if commit != mount.view().current().commit {
            mount.switch(commit)?;
        }
        if home.0.join("stop").exists() {
            mount.detach();
            ensure!(mount.is_finished(), "the threads of a detached mount go on");
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A repository, a holder, and a server that can be killed.
pub(crate) struct Scene {
    _dir: TempDir,
    pub(crate) home: Home,
    pub(crate) history: Arc<History>,
    holder: Mutex<Option<Child>>,
    server: Mutex<Option<Child>>,
}

impl Scene {
    pub(crate) fn new() -> Result<Self> {
        scratch::require_fuse()?;
        let dir = scratch::dir()?;
        let home = Home(dir.path().to_owned());
        let repo = Repo::init_bare(home.repository())?;
        let history = Arc::new(History::write(&repo, 50, 1)?);
        repo.run(["repack", "-adq"])?;
        std::fs::create_dir(home.target())?;
        let scene = Scene { _dir: dir, home, history, holder: Mutex::default(), server: Mutex::default() };
        scene.point(0)?;
        scene.hold()?;
        scene.serve()?;
        Ok(scene)
    }

    /// Moves the ref in one step.
    pub(crate) fn point(&self, number: usize) -> Result<()> {
        let served = self.home.repository().join(SERVED);
        let next = served.with_extension("lock");
        std::fs::write(&next, format!("{}\n", self.history.ids[number]))?;
        Ok(std::fs::rename(&next, &served)?)
    }

    pub(crate) fn wait_for(&self, number: usize) -> Result<()> {
        let id = self.history.ids[number].as_bytes();
        let served = || xattr::get(self.home.target(), "user.git.commit").ok().flatten().filter(|now| now == id);
        wait_for("the switch", SOON, served).map(drop)
    }

    /// Starts the holder.
    pub(crate) fn hold(&self) -> Result<()> {
        let mut command = Command::new(gitmount()?);
        command.args(["hold", "--socket"]).arg(self.home.socket()).stdin(Stdio::null());
        *self.holder.lock().expect("no panic") = Some(start(&mut command)?);
        let listens = || gitmount_fsd::handover::Holder::connect(&self.home.socket()).ok();
        wait_for("the holder", SOON, listens).map(drop)
    }

    /// Starts the server and waits until it serves.
    pub(crate) fn serve(&self) -> Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--exact", "server::serve", "--nocapture"]).env(HOME, &self.home.0).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = start(&mut command)?;
        let ready = self.home.ready(child.id());
        let served = wait_for("the server", SOON, || match child.try_wait() {
            Ok(Some(status)) => Some(Err(anyhow::anyhow!("the server ended with {status}"))),
            _ => std::fs::read_to_string(&ready).ok().filter(|said| !said.is_empty()).map(Ok),
        })?;
        *self.server.lock().expect("no panic") = Some(child);
        served.map(drop)
    }

    pub(crate) fn kill_server(&self) -> Result<()> {
        let mut server = self.server.lock().expect("no panic");
        let child = server.as_mut().context("nothing serves")?;
        child.kill()?;
        // As a supervisor does: the next one is started when this one has ended.
        wait_for("the end of a killed server", SOON, || child.try_wait().ok().flatten())?;
        *server = None;
        Ok(())
    }

    pub(crate) fn kill_holder(&self) -> Result<()> {
        let mut child = self.holder.lock().expect("no panic").take().context("nothing holds")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Ends the server gracefully.
    pub(crate) fn stop_server(&self) -> Result<()> {
        let stop = self.home.0.join("stop");
        std::fs::write(&stop, "")?;
        let mut child = self.server.lock().expect("no panic").take().context("nothing serves")?;
        let status = wait_for("the end of the server", SOON, || child.try_wait().ok().flatten())?;
        std::fs::remove_file(&stop)?;
        ensure!(status.success(), "the server ended with {status}");
        Ok(())
    }

    /// Waits until the holder has the mount.
    pub(crate) fn wait_until_held(&self) -> Result<()> {
        let held = || gitmount_fsd::handover::Holder::connect(&self.home.socket()).ok()?.collect().ok().filter(|all| all.len() == 1);
        wait_for("the deposit", SOON, held).map(drop)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let target: &Path = &self.home.target();
        // Ends whatever still waits for an answer.
        let _ = umount2(target, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH);
        for process in [&self.server, &self.holder] {
            if let Some(mut child) = process.lock().ok().and_then(|mut process| process.take()) {
                // It may have ended by itself.
                let _ = child.kill();
                let _ = wait_for("the end", SOON, || child.try_wait().ok().flatten());
            }
        }
        if is_mounted(target).unwrap_or(true) {
            let _ = unmount(target, true);
        }
    }
}
