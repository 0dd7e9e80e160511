//! The guides: their YAML is YAML, what they show as an example is that example, and their links lead somewhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use gitmount_tests::deploy::{Example, checkout, example_repository, examples, yaml};
use gitmount_tests::scratch;

/// The guides and the README, with their texts.
fn guides() -> Result<Vec<(PathBuf, String)>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(checkout("docs")?)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.push(checkout("README.md")?);
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.into_iter().map(|path| Ok((path.clone(), fs::read_to_string(path)?))).collect()
}

/// The blocks of `text` in `language`, each with the line before it.
fn blocks<'t>(text: &'t str, language: &str) -> Vec<(&'t str, &'t str)> {
    let fence = format!("\n```{language}\n");
    let mut found = vec![];
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(&fence) {
        let (block, after) = after.split_once("```").unwrap_or((after, ""));
        found.push((before.lines().next_back().unwrap_or_default(), block));
        rest = after;
    }
    found
}

#[test]
fn every_yaml_block_is_yaml_and_examples_are_shown_as_they_are() -> Result<()> {
    let mut shown = BTreeSet::new();
    for (path, text) in guides()? {
        for (before, block) in blocks(&text, "yaml") {
            yaml(block).with_context(|| format!("{}: {block}", path.display()))?;
            if let Some(name) = before.strip_prefix("<!-- example: ").and_then(|rest| rest.strip_suffix(" -->")) {
                let example = fs::read_to_string(checkout("deploy/examples")?.join(name))?;
                ensure!(block == example, "{} shows another {name} than deploy/examples has", path.display());
                ensure!(text.contains(&format!("`deploy/examples/{name}`")), "{} does not say where {name} is", path.display());
                shown.insert(name.to_owned());
            }
        }
    }
    let all: BTreeSet<String> = examples()?.into_iter().collect();
    ensure!(shown == all, "examples: {all:?}, shown in guides: {shown:?}");
    Ok(())
}

#[test]
fn links_and_paths_lead_somewhere() -> Result<()> {
    for (path, text) in guides()? {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(link, _)| link)) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.with_file_name(file) };
            ensure!(target.exists(), "{}: {link} is not there", path.display());
            if !anchor.is_empty() {
                let headings: Vec<String> = fs::read_to_string(&target)?.lines().filter_map(anchor_of).collect();
                ensure!(headings.iter().any(|heading| heading == anchor), "{}: {link} has no such heading: {headings:?}", path.display());
            }
        }
        for named in text.split(|c: char| c.is_whitespace() || "`()|'\",:".contains(c)).filter(|word| word.starts_with("deploy/")) {
            ensure!(checkout(named.trim_end_matches('.'))?.exists(), "{}: {named} is not there", path.display());
        }
    }
    Ok(())
}

/// The anchor of a heading, as forges make it.
fn anchor_of(line: &str) -> Option<String> {
    let heading = line.starts_with('#').then(|| line.trim_start_matches('#').trim())?;
    let kept = heading.to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
    Some(kept.replace(' ', "-"))
}

#[test]
fn examples_can_be_pointed_at_another_repository() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = example_repository(&dir.path().join("r.git"))?;
    repo.id("refs/tags/v1.3.1^{commit}")?;
    for name in examples()? {
        let example = Example::load(&name)?.image("local/test:1")?;
        let urls: BTreeSet<String> = attributes(&example).into_iter().map(|(_, url)| url).collect();
        let example = urls.iter().try_fold(example, |example, url| example.url(url, "http://127.0.0.1/r.git"))?;
        ensure!(attributes(&example).iter().all(|(_, url)| url == "http://127.0.0.1/r.git"), "{name}: {example:?}");
        for (reference, _) in attributes(&example) {
            repo.id(&format!("{reference}^{{commit}}")).with_context(|| name.clone())?;
        }
        ensure!(!example.pod()?.is_empty());
    }
    ensure!(Example::load("inline.yaml")?.url("https://example.com", "x").is_err());
    Ok(())
}

/// Ref and URL of every volume.
fn attributes(example: &Example) -> Vec<(String, String)> {
    let volumes = example.objects().iter().flat_map(|object| {
        let inline = object["spec"]["volumes"].as_array().cloned().unwrap_or_default();
        inline.into_iter().map(|volume| volume["csi"].clone()).chain([object["spec"]["csi"].clone()])
    });
    let attributes = volumes.map(|csi| csi["volumeAttributes"].clone()).filter(|attributes| attributes.is_object());
    let text = |value: &serde_json::Value, default: &str| value.as_str().unwrap_or(default).to_owned();
    attributes.map(|attributes| (text(&attributes["ref"], "HEAD"), text(&attributes["url"], ""))).collect()
}
