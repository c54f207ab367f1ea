//! How Rails names a connection when it ends its sessions (`ActionCable.server.remote_connections`): the
//! values of its identifiers in order, joined by colons, each record as the parameter of its GlobalID.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

/// The scheme of GlobalIDs.
const GLOBAL_ID: &str = "gid://";

/// Rails' name for a connection with these identifiers, a JSON object; `None` if a value is neither
/// text, a number nor a GlobalID.
pub(crate) fn rails_name(identifiers: &str) -> Option<String> {
    let identifiers: Map<String, Value> = serde_json::from_str(identifiers).ok()?;
    let values = identifiers.into_iter().filter(|(_, value)| !value.is_null());
    let mut values = values.map(|(_, value)| part(value)).collect::<Option<Vec<_>>>()?;
    values.sort_unstable();
    Some(values.join(":"))
}

fn part(value: Value) -> Option<String> {
    match value {
        Value::String(text) if text.starts_with(GLOBAL_ID) => Some(URL_SAFE_NO_PAD.encode(text)),
        // Also a GlobalID that is its parameter already.
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_global_ids_and_values_are_in_order() {
        let name = |identifiers| rails_name(identifiers);
        let user = "Z2lkOi8vYXBwL1VzZXIvMQ";
        assert_eq!(name(r#"{"current_user":"gid://app/User/1"}"#).as_deref(), Some(user));
        assert_eq!(name(r#"{"current_user":"Z2lkOi8vYXBwL1VzZXIvMQ"}"#).as_deref(), Some(user));
        let both = r#"{"user":"zoe","tenant":7,"guest":null,"admin":true}"#;
        assert_eq!(name(both).as_deref(), Some("7:true:zoe"));
        for other in [r#"{"user":{"id":1}}"#, r#"{"user":[1]}"#, "[]", "7", "{"] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
