//! Reading an [`Outcome`] from JSON, of this version of the schema or an older one.

use serde_json::{Value, json};

use crate::outcome::{OUTCOME_VERSION, Outcome};

impl Outcome {
    /// Reads an outcome. Version 1, which had no `version`, is understood; what it did not contain
    /// stays unknown.
    ///
    /// # Errors
    /// A document that is not an outcome, or one of a later version; the text says which.
    pub fn read(mut value: Value) -> Result<Outcome, String> {
        let version = value.get("version").and_then(Value::as_u64).unwrap_or(1);
        if version > OUTCOME_VERSION.into() {
            return Err(format!(
                "it has version {version} of the schema: expected at most {OUTCOME_VERSION}, so \
                 read it with the release of standfast that wrote it"
            ));
        }
        if version == 1 {
            upgrade(&mut value);
        }
        upgrade_generator(&mut value);
        serde_json::from_value(value).map_err(|error| error.to_string())
    }
}

/// `saturated` was the reason or null.
fn upgrade_generator(value: &mut Value) {
    let generator = value.get_mut("generator").and_then(Value::as_object_mut);
    let Some(generator) = generator else { return };
    if let Some(saturated) = generator.get("saturated").filter(|saturated| !saturated.is_boolean())
    {
        let reasons: Vec<String> = saturated.as_str().map(str::to_owned).into_iter().collect();
        generator.insert("saturated".to_owned(), json!(!reasons.is_empty()));
        generator.insert("reasons".to_owned(), json!(reasons));
    }
}

/// Adds what version 1 left out. `samples` and the like were always written.
fn upgrade(value: &mut Value) {
    let users = value.get("users").cloned();
    let Some(object) = value.as_object_mut() else { return };
    let absent = [
        ("version", json!(1)),
        ("standfast", json!("")),
        ("interrupted", json!(false)),
        ("thresholds", json!([])),
        ("samples", json!([])),
    ];
    for (key, default) in absent {
        object.entry(key).or_insert(default);
    }
    // Of requests it had only the number that was configured.
    let connections = object.get_mut("connections").and_then(Value::as_object_mut);
    if let (Some(connections), Some(users)) = (connections, users) {
        connections.entry("requested").or_insert(users);
    }
}
