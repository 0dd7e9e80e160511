//! Logins over HTTP, from where git takes them: credential helpers, `$GIT_ASKPASS`, and the terminal.
//!
//! A login is asked for when a host wants one, kept in memory for the mount's later fetches, and approved or rejected at the helpers when
//! the host has taken or refused it. Once the command is in the background nobody is asked any more; helpers are.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gitmount_store::credential::{Login, LoginSource, Secret};
use gitmount_store::error::Result;
use gitmount_store::{Fault, StoreError};
use gix::credentials::helper::{Action, Cascade, NextAction};
use gix::open::permissions::Environment;
use gix::prompt;
use nix::sys::termios::{self, SetArg, Termios};

use super::git_config;
use super::progress::Bar;

/// The user's way of logging in.
pub struct GitLogin {
    bar: Arc<Bar>,
    terminal: Arc<Terminal>,
    interactive: AtomicBool,
    remembered: Mutex<Option<Remembered>>,
}

struct Remembered {
    login: Login,
    next: NextAction,
    approved: bool,
}

impl GitLogin {
    /// Asks on `terminal`, with `bar` out of the way.
    pub fn new(bar: Arc<Bar>, terminal: Arc<Terminal>) -> Self {
        GitLogin { bar, terminal, interactive: AtomicBool::new(true), remembered: Mutex::new(None) }
    }

    /// From now on nobody is asked.
    pub fn end_interaction(&self) {
        self.interactive.store(false, Ordering::SeqCst);
    }

    /// The helpers that are configured for `url`, and how to ask the user.
    fn helpers(&self, url: &str) -> Result<(Cascade, Action, prompt::Options)> {
        let config = git_config::load()?;
        let failed =
            |e: gix::Error| StoreError::new(Fault::Usage, format!("the credential helpers of the git configuration are unusable: {e}"));
        let url = gix::url::parse(url).map_err(failed)?;
        let (cascade, action, mut prompt) =
            gix::config::credential_helpers(url, &config, true, |_| true, Environment::all(), false).map_err(failed)?;
        let interactive = self.interactive.load(Ordering::SeqCst);
        if !interactive {
            prompt.askpass = None;
        }
        let terminal = interactive && prompts_allowed(std::env::var("GIT_TERMINAL_PROMPT").ok().as_deref()) && Terminal::open().is_some();
        if !terminal && prompt.askpass.is_none() {
            prompt.mode = prompt::Mode::Disable;
        }
        Ok((cascade, action, prompt))
    }

    /// Tells the helpers how a login went. They cannot fail us.
    fn tell(&self, url: &str, action: Action) {
        let Ok((mut cascade, _, mut prompt)) = self.helpers(url) else { return };
        prompt.mode = prompt::Mode::Disable;
        if let Err(error) = cascade.invoke(action, prompt) {
            tracing::debug!(%error, "a credential helper failed");
        }
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, Option<Remembered>> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoginSource for GitLogin {
    fn login(&self, url: &str) -> Result<Option<Login>> {
        if let Some(known) = &*self.remembered() {
            return Ok(Some(known.login.clone()));
        }
        let (mut cascade, action, prompt) = self.helpers(url)?;
        let asked = self.bar.suspend(|| self.terminal.guard(|| cascade.invoke(action, prompt)));
        let outcome = match asked {
            Ok(outcome) => outcome,
            Err(error) => {
                // No helper knew one and nobody could be asked: the host's refusal is the better message.
                tracing::debug!(%error, "no login");
                None
            }
        };
        let Some(outcome) = outcome else { return Ok(None) };
        let login = Login { username: outcome.identity.username, password: Secret::new(outcome.identity.password) };
        *self.remembered() = Some(Remembered { login: login.clone(), next: outcome.next, approved: false });
        Ok(Some(login))
    }

    fn remedy(&self) -> &'static str {
        "set up a credential helper of git's for it"
    }

    fn accepted(&self, url: &str, _: &Login) {
        let next = match &mut *self.remembered() {
            Some(known) if !known.approved => {
                known.approved = true;
                known.next.clone()
            }
            _ => return,
        };
        self.tell(url, next.store());
    }

    fn refused(&self, url: &str, login: &Login) {
        let known = {
            let mut remembered = self.remembered();
            if remembered.as_ref().is_none_or(|known| known.login.password != login.password) {
                return;
            }
            remembered.take()
        };
        if let Some(known) = known {
            self.tell(url, known.next.erase());
        }
    }
}

/// `GIT_TERMINAL_PROMPT`: anything but a false boolean allows them.
fn prompts_allowed(value: Option<&str>) -> bool {
    !value.is_some_and(|v| matches!(v.to_ascii_lowercase().as_str(), "0" | "false" | "no" | "off" | ""))
}

/// The terminal while somebody types a password into it.
#[derive(Debug, Default)]
pub struct Terminal {
    before: Mutex<Option<Termios>>,
}

impl Terminal {
    fn open() -> Option<std::fs::File> {
        std::fs::OpenOptions::new().read(true).write(true).open("/dev/tty").ok()
    }

    /// Runs what may turn the echo off.
    fn guard<T>(&self, ask: impl FnOnce() -> T) -> T {
        let before = || self.before.lock().unwrap_or_else(PoisonError::into_inner);
        *before() = Terminal::open().and_then(|tty| termios::tcgetattr(&tty).ok());
        let answer = ask();
        *before() = None;
        answer
    }

    /// Whether somebody is being asked; then the terminal is put back as it was, and the caller ends the process: the thread that asks sits
    /// in a read that nothing else ends.
    pub fn interrupted(&self) -> bool {
        let Some(before) = self.before.lock().unwrap_or_else(PoisonError::into_inner).take() else { return false };
        if let Some(tty) = Terminal::open() {
            // The process ends either way. The cursor stands behind the prompt.
            let _ = termios::tcsetattr(&tty, SetArg::TCSANOW, &before);
            let _ = (&tty).write_all(b"\n");
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_prompts_are_allowed_unless_switched_off() {
        assert!(prompts_allowed(None) && prompts_allowed(Some("1")) && prompts_allowed(Some("true")));
        for off in ["0", "false", "No", "OFF", ""] {
            assert!(!prompts_allowed(Some(off)), "{off:?}");
        }
    }

    #[test]
    fn a_terminal_that_asks_nobody_is_not_interrupted() {
        let terminal = Terminal::default();
        assert!(!terminal.interrupted());
        assert_eq!(terminal.guard(|| 7), 7);
        assert!(!terminal.interrupted());
    }
}
