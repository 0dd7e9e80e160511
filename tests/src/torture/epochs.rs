//! The sequence of switches. An *epoch* is one of them; its commit is served from some moment after it began until one after the next began.

use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, bail};

/// A set of commits, by their number in the history.
pub type Commits = u64;

/// What was switched to so far.
#[derive(Debug)]
pub struct Epochs {
    /// The commit of each epoch that has begun.
    begun: RwLock<Vec<usize>>,
    /// The last epoch that every reader must see.
    finished: AtomicUsize,
}

impl Epochs {
    /// Epoch 0 serves `commit`.
    pub fn new(commit: usize) -> Self {
        Epochs { begun: RwLock::new(vec![commit]), finished: AtomicUsize::new(0) }
    }

    /// The next switch is about to begin; gives its epoch.
    pub fn begin(&self, commit: usize) -> usize {
        let mut begun = self.begun.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        begun.push(commit);
        begun.len() - 1
    }

    /// `epoch` is served: who looks from now on sees it, or a later one.
    pub fn finish(&self, epoch: usize) {
        self.finished.fetch_max(epoch, Ordering::SeqCst);
    }

    /// The last finished epoch.
    pub fn finished(&self) -> usize {
        self.finished.load(Ordering::SeqCst)
    }

    /// Switches so far.
    pub fn count(&self) -> usize {
        self.read().len() - 1
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Vec<usize>> {
        self.begun.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// What one reader knows of the time.
#[derive(Debug)]
pub struct Observer<'a> {
    epochs: &'a Epochs,
    low: usize,
}

impl<'a> Observer<'a> {
    /// A reader that has seen nothing yet.
    pub fn new(epochs: &'a Epochs) -> Self {
        Observer { epochs, low: 0 }
    }

    /// An operation begins: what is finished now must be seen by it.
    pub fn begin(&mut self) {
        self.low = self.low.max(self.epochs.finished());
    }

    /// The operation saw what only `commits` have.
    ///
    /// # Errors
    /// When no epoch that is possible now had one of them.
    pub fn saw(&mut self, commits: Commits, what: &dyn Fn() -> String) -> Result<()> {
        let begun = self.epochs.read();
        match begun[self.low..].iter().position(|commit| commits >> commit & 1 == 1) {
            Some(later) => self.low += later,
            None => {
                let possible: Vec<_> = begun[self.low..].iter().take(20).collect();
                let before = &begun[self.low.saturating_sub(5)..self.low];
                let fits: Vec<_> = (0..u64::BITS).filter(|bit| commits >> bit & 1 == 1).collect();
                bail!(
                    "{}: fits the commits {fits:?}, but from epoch {} on these were served: {possible:?} (before: {before:?})",
                    what(),
                    self.low
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_one_way() {
        let epochs = Epochs::new(0);
        let mut observer = Observer::new(&epochs);
        let what = || String::from("it");
        observer.begin();
        observer.saw(0b001, &what).unwrap();
        observer.saw(0b010, &what).unwrap_err();
        epochs.begin(1);
        observer.saw(0b011, &what).unwrap();
        observer.saw(0b001, &what).unwrap();
        observer.saw(0b010, &what).unwrap();
        observer.saw(0b001, &what).unwrap_err();
        epochs.begin(0);
        observer.saw(0b001, &what).unwrap();
        observer.saw(0b010, &what).unwrap_err();
    }

    #[test]
    fn what_is_finished_must_be_seen() {
        let epochs = Epochs::new(0);
        let mut observer = Observer::new(&epochs);
        epochs.finish(epochs.begin(1));
        observer.begin();
        observer.saw(0b001, &|| String::new()).unwrap_err();
        observer.saw(0b010, &|| String::new()).unwrap();
    }
}
