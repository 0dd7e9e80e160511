//! The part of a body that is read: members of other names, long texts, numbers, and what comes after the limits are passed over while they are
//! parsed, so that a body takes no more memory than its own however many values it has.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Bytes of all that is kept of a body: enough for a push of [`ELEMENTS`] refs by the forge that says most of each.
const BUDGET: usize = 16 << 20;

/// What a value takes besides its text, about.
const VALUE: usize = 256;

/// Texts above this are none.
pub(super) const LONGEST: usize = 4096;

/// Elements of a list that are looked at.
pub(super) const ELEMENTS: usize = 1000;

/// The names of members that are read.
const NAMES: [&str; 40] = [
    "after",
    "changes",
    "clone",
    "clone_url",
    "commit",
    "defaultBranch",
    "default_branch",
    "eventType",
    "git_http_url",
    "git_ssh_url",
    "git_url",
    "hash",
    "homepage",
    "href",
    "html",
    "html_url",
    "http_url",
    "id",
    "links",
    "mainbranch",
    "name",
    "new",
    "newObjectId",
    "object_kind",
    "old",
    "project",
    "push",
    "ref",
    "refUpdates",
    "remoteUrl",
    "repository",
    "resource",
    "sshUrl",
    "ssh_url",
    "target",
    "toHash",
    "type",
    "url",
    "webUrl",
    "web_url",
];

/// Reads a body; `null` takes the place of what is passed over.
///
/// # Errors
/// When it is no JSON.
pub(super) fn parse(body: &[u8]) -> serde_json::Result<Value> {
    let left = Cell::new(BUDGET);
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = json.deserialize_any(Kept(&left))?;
    json.end()?;
    Ok(value)
}

/// Reads a value, with the bytes that are left.
#[derive(Clone, Copy)]
struct Kept<'b>(&'b Cell<usize>);

impl Kept<'_> {
    /// Takes the room of a value with `text` bytes; `false` when there is none.
    fn take(self, text: usize) -> bool {
        let left = self.0.get().checked_sub(VALUE + text);
        self.0.set(left.unwrap_or_default());
        left.is_some()
    }
}

impl<'de> DeserializeSeed<'de> for Kept<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Kept<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(if text.len() <= LONGEST && self.take(text.len()) { text.into() } else { Value::Null })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut kept = vec![];
        while kept.len() < ELEMENTS && self.take(0) {
            match list.next_element_seed(self)? {
                Some(value) => kept.push(value),
                None => return Ok(kept.into()),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(kept.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            if NAMES.contains(&&*name) && self.take(0) {
                kept.insert(name, map.next_value_seed(self)?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(kept.into())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many values there are, and how long their texts are together.
    fn size(value: &Value) -> (usize, usize) {
        let sum = |all: &mut dyn Iterator<Item = (usize, usize)>| all.fold((1, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        match value {
            Value::String(text) => (1, text.len()),
            Value::Array(list) => sum(&mut list.iter().map(size)),
            Value::Object(map) => sum(&mut map.values().map(size)),
            Value::Null | Value::Bool(_) | Value::Number(_) => (1, 0),
        }
    }

    #[test]
    fn what_is_kept_is_bounded_whatever_a_body_holds() {
        let many = |piece: &str| piece.repeat((4 << 20) / piece.len());
        let list = format!("[{}0]", "{\"url\":{\"url\":0}},".repeat(2 * ELEMENTS));
        let text = format!("\"{}\",", "x".repeat(LONGEST));
        let members = |inner: &str| ["url", "ref", "id", "new"].map(|name| format!("\"{name}\":{inner}")).join(",");
        let tree = (0..9).fold("0".to_owned(), |inner, _| format!("{{{}}}", members(&inner)));
        for body in [
            tree,
            format!("[{}0]", many("0,")),
            format!("[{}0]", many("{\"url\":[0,0]},")),
            format!("{{{}\"url\":0}}", many("\"url\":\"u\",")),
            format!("{{{}\"url\":0}}", many("\"u\":{\"url\":[0]},")),
            format!("[{}0]", many(&format!("{list},"))),
            format!("[{}0]", many(&format!("[{}0],", text.repeat(ELEMENTS)))),
        ] {
            let (values, texts) = size(&parse(body.as_bytes()).unwrap());
            assert!(values * VALUE + texts <= BUDGET + VALUE, "{values} values with {texts} bytes of text are kept of {body:.60}");
        }
    }

    #[test]
    fn what_is_read_is_kept_as_it_is() {
        let body =
            r#"{"commits": [{"id": 1}], "ref": "a\u00e9\n", "n": 1.5, "push": {"changes": [{"new": null}, {"new": {"name": "x"}}, true]}}"#;
        let kept = serde_json::json!({"ref": "a\u{e9}\n", "push": {"changes": [{"new": null}, {"new": {"name": "x"}}, null]}});
        assert_eq!(parse(body.as_bytes()).unwrap(), kept);
        for wrong in ["", "{", "{\"commits\": [}", "{} {}", "{\"commits\": nonsense}", "[1,]"] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
