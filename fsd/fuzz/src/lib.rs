//! What must hold for every input that comes from outside. Each function takes arbitrary bytes and panics when a property is broken.
//!
//! `make fuzz` feeds them from libFuzzer (`targets/`), starting from the committed inputs in `corpus/<target>/`; the test below replays
//! those inputs with every ordinary test run, so that an input that once broke something stays in the corpus and stays fixed.

use gitmount_store::known_hosts::{KnownHosts, Verdict, entry};
use gitmount_store::objects::{EntryKind, Tree};
use gitmount_store::refspec::RefSpec;
use gitmount_store::url::{RepoUrl, UrlPolicy};

/// URLs: what parses prints as a text that parses to the same URL, and nothing in it can be taken for an option or a line of its own.
pub fn url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let everything = UrlPolicy { allow_http: true, allow_file: true, hosts: vec![] };
    let Ok(url) = RepoUrl::parse(text, &everything) else {
        assert!(RepoUrl::parse(text, &UrlPolicy::default()).is_err(), "the narrow policy takes what the wide one refuses: {text:?}");
        return;
    };
    let shown = url.to_string();
    let again = RepoUrl::parse(&shown, &everything).unwrap_or_else(|e| panic!("{text:?} prints as {shown:?}, which does not parse: {e}"));
    assert_eq!(url, again, "{text:?} prints as {shown:?}, which is another URL");
    assert_eq!(url.normalized(), again.normalized(), "{text:?}");
    assert!(!shown.starts_with('-') && !url.host().starts_with('-'), "{text:?} could be read as an option");
    assert!(!shown.contains(char::is_control), "{text:?} prints control characters");
}

/// Refs: what parses prints as itself and leads only to names that git allows.
pub fn reference(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(spec) = RefSpec::parse(text) else { return };
    let shown = spec.to_string();
    let again = RefSpec::parse(&shown).unwrap_or_else(|e| panic!("{text:?} prints as {shown:?}, which does not parse: {e}"));
    assert_eq!(spec, again, "{text:?} prints as {shown:?}, which is another ref");
    for name in spec.candidates() {
        assert!(name == "HEAD" || name.starts_with("refs/"), "{text:?} gives the partial name {name:?}");
        assert!(!name.contains("..") && !name.contains("//") && !name.contains("@{"), "{text:?} gives {name:?}");
        assert!(!name.ends_with(".lock") && !name.ends_with('/') && !name.ends_with('.'), "{text:?} gives {name:?}");
        assert!(!name.contains(|c: char| c.is_ascii_control() || " ~^:?*[\\".contains(c)), "{text:?} gives {name:?}");
    }
}

/// Trees: the first byte chooses the hash, the rest is the object. What decodes has clean, unique, sorted names, finds each of them, and
/// decodes to the same again when it is written the way git writes it.
pub fn tree(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    let hash = if choice & 1 == 0 { gix::hash::Kind::Sha1 } else { gix::hash::Kind::Sha256 };
    let Ok(tree) = Tree::decode(data, hash) else { return };
    for (position, entry) in tree.entries().iter().enumerate() {
        let name = entry.name.as_slice();
        assert!(!name.is_empty() && name.len() <= 255, "a name of {} bytes", name.len());
        assert!(name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0), "the name {:?}", entry.name);
        assert_eq!(tree.find(entry.name.as_ref()), Some(position), "{:?} is not where it is listed", entry.name);
        assert_eq!(entry.id.kind(), hash);
    }
    assert!(tree.entries().is_sorted_by(|a, b| a.name < b.name), "names are not sorted or not unique");
    let written = encode(&tree);
    assert_eq!(Tree::decode(&written, hash).expect("a tree written by git's rules decodes"), tree);
}

/// `known_hosts`: the first line is the host that is looked up, the rest is the file. A key that is found is accepted unless it is
/// revoked, a revoked one never is, and the line that would be written for a found key finds it again.
pub fn known_hosts(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (host, file) = text.split_once('\n').unwrap_or((text, ""));
    let host = host.trim_end();
    let hosts = KnownHosts::parse(file);
    for port in [22, 2222] {
        let known = hosts.lookup(host, port);
        assert_eq!(known, hosts.lookup(&host.to_ascii_uppercase(), port), "{host:?} depends on its case");
        for key in &known.revoked {
            assert_eq!(known.check(&key.blob), Verdict::Revoked);
        }
        for key in &known.keys {
            let revoked = known.revoked.iter().any(|r| r.blob == key.blob);
            assert_eq!(known.check(&key.blob), if revoked { Verdict::Revoked } else { Verdict::Match });
            // Only names that a URL can hold are ever written.
            if !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:".contains(&b)) {
                let line = entry(host, port, key);
                assert_eq!(KnownHosts::parse(&line).lookup(host, port).keys, std::slice::from_ref(key), "{line:?}");
            }
        }
    }
}

/// The tree object that git would write.
fn encode(tree: &Tree) -> Vec<u8> {
    let mut entries: Vec<_> = tree.entries().iter().collect();
    // Git sorts a directory as if its name ended with a slash.
    entries.sort_by_key(|e| [e.name.as_slice(), if e.kind == EntryKind::Directory { b"/" } else { b"" }].concat());
    let mut out = Vec::new();
    for entry in entries {
        out.extend_from_slice(match entry.kind {
            EntryKind::File => b"100644 ",
            EntryKind::Executable => b"100755 ",
            EntryKind::Symlink => b"120000 ",
            EntryKind::Directory => b"40000 ",
            EntryKind::Submodule => b"160000 ",
        });
        out.extend_from_slice(&entry.name);
        out.push(0);
        out.extend_from_slice(entry.id.as_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    fn replay(target: &str, property: fn(&[u8])) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        let mut inputs = 0;
        for entry in corpus.read_dir().unwrap_or_else(|e| panic!("{}: {e}", corpus.display())) {
            property(&std::fs::read(entry.unwrap().path()).unwrap());
            inputs += 1;
        }
        assert!(inputs >= 10, "{} has only {inputs} inputs", corpus.display());
    }

    #[test]
    fn every_url_of_the_corpus_holds() {
        replay("url", super::url);
    }

    #[test]
    fn every_ref_of_the_corpus_holds() {
        replay("ref", super::reference);
    }

    #[test]
    fn every_known_hosts_of_the_corpus_holds() {
        replay("known_hosts", super::known_hosts);
    }

    #[test]
    fn every_tree_of_the_corpus_holds() {
        replay("tree", super::tree);
    }
}
