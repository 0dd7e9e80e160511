//! The files below `deploy/` as tests use them: examples with this cluster's URL and image in place of the ones that users would replace,
//! the chart, and YAML.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::fixtures;
use crate::git::Repo;

/// A path of the checkout.
///
/// # Errors
/// None in a checkout.
pub fn checkout(path: &str) -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate lies in the workspace")?.join(path))
}

/// The documents of a YAML text.
///
/// # Errors
/// When it is none.
pub fn yaml(text: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// The names of all examples.
///
/// # Errors
/// When they cannot be listed.
pub fn examples() -> Result<Vec<String>> {
    let entries = fs::read_dir(checkout("deploy/examples")?)?;
    let mut names: Vec<String> = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

/// One of `deploy/examples`, to be applied. What is replaced must be there: an example that changed fails its test.
#[derive(Debug, Clone)]
pub struct Example {
    name: String,
    objects: Vec<Value>,
}

impl Example {
    /// Reads the example `name`, such as `inline.yaml`.
    ///
    /// # Errors
    /// When there is none, or it is no YAML.
    pub fn load(name: &str) -> Result<Self> {
        let text = fs::read_to_string(checkout("deploy/examples")?.join(name)).with_context(|| format!("the example {name}"))?;
        Ok(Example { name: name.to_owned(), objects: yaml(&text)? })
    }

    /// The repository at `url` in place of `shown`.
    ///
    /// # Errors
    /// When no volume shows that one.
    pub fn url(self, shown: &str, url: &str) -> Result<Self> {
        self.replace(&format!("the URL {shown}"), |key, value| key == "url" && value == shown, url)
    }

    /// The image `image` in every container.
    ///
    /// # Errors
    /// When there is no container.
    pub fn image(self, image: &str) -> Result<Self> {
        self.replace("an image", |key, _| key == "image", image)
    }

    /// The namespace `namespace` in place of `shown`, wherever an object or a reference names it.
    ///
    /// # Errors
    /// When nothing names that one.
    pub fn namespace(mut self, shown: &str, namespace: &str) -> Result<Self> {
        for object in self.objects.iter_mut().filter(|object| object["kind"] == "Namespace" && object["metadata"]["name"] == shown) {
            object["metadata"]["name"] = namespace.into();
        }
        self.replace(&format!("the namespace {shown}"), |key, value| key == "namespace" && value == shown, namespace)
    }

    /// The namespace of the objects that name none, as `kubectl -n` has it.
    #[must_use]
    pub fn within(mut self, namespace: &str) -> Self {
        for object in &mut self.objects {
            let everywhere = ["Namespace", "PersistentVolume"].iter().any(|kind| object["kind"] == *kind);
            if !everywhere && object["metadata"]["namespace"].is_null() {
                object["metadata"]["namespace"] = namespace.into();
            }
        }
        self
    }

    /// `value` for the key `key` of the Secret in it.
    ///
    /// # Errors
    /// When the example has no such key.
    pub fn secret(self, key: &str, value: &str) -> Result<Self> {
        self.replace(&format!("the key {key}"), |at, shown| at == key && shown.starts_with("REPLACE-WITH-"), value)
    }

    fn replace(mut self, what: &str, applies: impl Fn(&str, &str) -> bool, with: &str) -> Result<Self> {
        let count = self.objects.iter_mut().map(|object| replace(object, &applies, with)).sum::<usize>();
        ensure!(count > 0, "the example {} does not have {what}", self.name);
        Ok(self)
    }

    /// The name of its pod.
    ///
    /// # Errors
    /// When it has none.
    pub fn pod(&self) -> Result<&str> {
        let pod = self.objects.iter().find(|object| object["kind"] == "Pod");
        pod.and_then(|pod| pod["metadata"]["name"].as_str()).with_context(|| format!("the example {} has no pod", self.name))
    }

    /// Its objects.
    pub fn objects(&self) -> &[Value] {
        &self.objects
    }

    /// All of it as one object, for `kubectl apply -f -`.
    pub fn list(&self) -> Value {
        json!({ "apiVersion": "v1", "kind": "List", "items": self.objects })
    }
}

/// Replaces every text of an object that `applies` takes by its key; gives how many there were.
fn replace(value: &mut Value, applies: &impl Fn(&str, &str) -> bool, with: &str) -> usize {
    match value {
        Value::Array(values) => values.iter_mut().map(|value| replace(value, applies, with)).sum(),
        Value::Object(fields) => fields
            .iter_mut()
            .map(|(key, value)| match value {
                Value::String(text) if applies(key, text) => {
                    *text = with.to_owned();
                    1
                }
                value => replace(value, applies, with),
            })
            .sum(),
        _ => 0,
    }
}

/// A repository at `path` that has what the examples name: the branch `master`, which is the default, the tag `v1.3.1`, and the directory
/// `Documentation`.
///
/// # Errors
/// When git fails.
pub fn example_repository(path: &Path) -> Result<Repo> {
    let repo = fixtures::small(path, &[("README", "an example\n"), ("Documentation/guide.txt", "a guide\n")])?;
    repo.line(["branch", "--move", "--force", "master"])?;
    repo.line(["tag", "v1.3.1", "master"])?;
    Ok(repo)
}
