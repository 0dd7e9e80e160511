//! The plan of a tree: paths, sizes and contents that follow from a seed. Nothing is written here.

use std::collections::HashSet;

use crate::content::{Kind, content, word};
use crate::random::Random;

/// How big a tree is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Files.
    pub(crate) files: usize,
    /// Directories, the root not counted.
    pub(crate) directories: usize,
    /// Bytes of all files together, met within a percent.
    pub(crate) bytes: u64,
    /// Where all random numbers come from.
    pub(crate) seed: u64,
}

/// One file.
#[derive(Debug, Clone)]
pub(crate) struct File {
    /// Path below the root.
    pub(crate) path: String,
    /// Bytes.
    pub(crate) size: usize,
    /// Whether it may be executed.
    pub(crate) executable: bool,
    kind: Kind,
    seed: u64,
}

impl File {
    /// What is in it.
    pub(crate) fn content(&self) -> Vec<u8> {
        content(self.kind, self.seed, self.size)
    }
}

/// Directories nest at most this deep.
const DEEPEST: usize = 12;

/// Sizes spread like those of large source repositories: a log-normal distribution, most files small, some of megabytes.
const SPREAD: f64 = 1.65;

/// All files of a tree.
pub(crate) fn plan(shape: &Shape) -> Vec<File> {
    let mut random = Random::new(shape.seed);
    let directories = directories(shape.directories, &mut random);
    let mut taken = HashSet::new();
    let mut relative_sizes = Vec::with_capacity(shape.files);
    let mut files: Vec<File> = (0..shape.files)
        .map(|n| {
            // Git knows no empty directories, so each gets one file; the others crowd in the directories that were made first.
            let skewed = random.unit();
            let directory = directories.get(n).unwrap_or_else(|| &directories[(skewed * skewed * directories.len() as f64) as usize]);
            let kind = if random.below(100) < 4 { Kind::Binary } else { Kind::Text };
            relative_sizes.push((SPREAD * random.normal()).exp() * if kind == Kind::Binary { 2.0 } else { 1.0 });
            File {
                path: name(directory, kind, &mut taken, &mut random),
                size: 0,
                executable: random.below(100) < 3,
                kind,
                // Some files start as copies of others do, which is what makes deltas in a pack.
                seed: if random.below(100) < 15 { shape.seed ^ random.below(200) as u64 } else { random.next() },
            }
        })
        .collect();
    let scale = shape.bytes as f64 / relative_sizes.iter().sum::<f64>();
    for (file, relative) in files.iter_mut().zip(relative_sizes) {
        file.size = (relative * scale).round() as usize;
    }
    files
}

/// Paths of directories, parents before children; each is empty or ends with a slash.
fn directories(count: usize, random: &mut Random) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut taken = HashSet::new();
    while all.len() <= count {
        // Half of them go below one of the latest, which makes long paths; half below any.
        let from = if random.below(2) == 0 { all.len().saturating_sub(20) } else { 0 };
        let parent = &all[from + random.below(all.len() - from)];
        let path = format!("{parent}{}/", word(random));
        if path.matches('/').count() <= DEEPEST && taken.insert(path.clone()) {
            all.push(path);
        }
    }
    all
}

fn name(directory: &str, kind: Kind, taken: &mut HashSet<String>, random: &mut Random) -> String {
    let extension = match kind {
        Kind::Text => random.pick(&["c", "go", "h", "json", "md", "py", "rs", "sh", "ts", "yaml"]),
        Kind::Binary => random.pick(&["bin", "gz", "png", "ttf"]),
    };
    loop {
        let path = format!("{directory}{}_{}.{extension}", word(random), word(random));
        if taken.insert(path.clone()) {
            return path;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { files: 3_000, directories: 400, bytes: 50_000_000, seed: 1 };

    #[test]
    fn a_plan_has_the_shape_that_was_asked_for() {
        let files = plan(&SHAPE);
        let paths: HashSet<_> = files.iter().map(|f| &f.path).collect();
        assert_eq!(paths.len(), SHAPE.files);
        let parents: HashSet<_> = files.iter().flat_map(|f| f.path.match_indices('/').map(|(at, _)| &f.path[..at])).collect();
        assert_eq!(parents.len(), SHAPE.directories);
        let bytes: usize = files.iter().map(|f| f.size).sum();
        assert!((bytes as f64 / SHAPE.bytes as f64 - 1.0).abs() < 0.01, "{bytes} bytes");
        assert!(!paths.iter().any(|path| parents.contains(path.as_str())), "a file has the name of a directory");
    }

    #[test]
    fn a_plan_follows_from_its_seed() {
        let (once, again) = (plan(&SHAPE), plan(&SHAPE));
        assert!(once.iter().zip(&again).all(|(a, b)| a.path == b.path && a.content() == b.content()));
        let other = plan(&Shape { seed: 2, ..SHAPE });
        assert_ne!(once[100].path, other[100].path);
    }

    #[test]
    fn most_files_are_small_and_some_are_big() {
        let mut sizes: Vec<_> = plan(&SHAPE).iter().map(|f| f.size).collect();
        sizes.sort_unstable();
        let mean = SHAPE.bytes as usize / SHAPE.files;
        assert!(sizes[SHAPE.files / 2] < mean / 2, "the median is {}", sizes[SHAPE.files / 2]);
        assert!(sizes[SHAPE.files - 1] > mean * 20, "the biggest is {}", sizes[SHAPE.files - 1]);
    }
}
