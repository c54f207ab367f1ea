//! `grpc-status-details-bin`: the `google.rpc.Status` of an error, whose details say more than its message. Those
//! of `google/rpc/error_details.proto` are known; others if the service's own types have them.

use std::sync::OnceLock;

use prost::Message as _;
use prost_reflect::prost_types::Any;
use prost_reflect::{DescriptorPool, DynamicMessage};
use protox::Compiler;
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};
use serde_json::{Value, json};

use super::limits::STATUS_DETAILS;
use super::metadata::decode_binary;
use super::schema::Schema;

/// Names and numbers of the fields of `google/rpc/error_details.proto`.
const ERROR_DETAILS: &str = r#"
syntax = "proto3";
package google.rpc;
import "google/protobuf/duration.proto";
message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
message RetryInfo { google.protobuf.Duration retry_delay = 1; }
message DebugInfo { repeated string stack_entries = 1; string detail = 2; }
message QuotaFailure {
  message Violation {
    string subject = 1; string description = 2; string api_service = 3; string quota_metric = 4;
    string quota_id = 5; map<string, string> quota_dimensions = 6; int64 quota_value = 7;
    optional int64 future_quota_value = 8;
  }
  repeated Violation violations = 1;
}
message PreconditionFailure {
  message Violation { string type = 1; string subject = 2; string description = 3; }
  repeated Violation violations = 1;
}
message BadRequest {
  message FieldViolation {
    string field = 1; string description = 2; string reason = 3; LocalizedMessage localized_message = 4;
  }
  repeated FieldViolation field_violations = 1;
}
message RequestInfo { string request_id = 1; string serving_data = 2; }
message ResourceInfo {
  string resource_type = 1; string resource_name = 2; string owner = 3; string description = 4;
}
message Help {
  message Link { string description = 1; string url = 2; }
  repeated Link links = 1;
}
message LocalizedMessage { string locale = 1; string message = 2; }
"#;

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// The details of a status as JSON, each with the name of its type as `@type`; one of an unknown type has its
/// length. `None` if the header's value is not a status. At most 16 are read.
#[must_use]
pub fn status_details(value: &[u8], schema: Option<&Schema>) -> Option<Vec<Value>> {
    let status = RpcStatus::decode(&*decode_binary(value)?).ok()?;
    Some(status.details.iter().take(STATUS_DETAILS).map(|any| detail(any, schema)).collect())
}

/// The names of the types of the details of a status; none if the header's value is not a status.
#[must_use]
pub(crate) fn detail_types(value: &[u8]) -> Vec<String> {
    let status = decode_binary(value).and_then(|bytes| RpcStatus::decode(&*bytes).ok());
    let details = status.map(|status| status.details).unwrap_or_default();
    details.iter().take(STATUS_DETAILS).map(|any| type_name(any).to_owned()).collect()
}

fn type_name(any: &Any) -> &str {
    any.type_url.rsplit('/').next().unwrap_or_default()
}

fn detail(any: &Any, schema: Option<&Schema>) -> Value {
    let name = type_name(any);
    let own = schema.and_then(|schema| schema.pool().get_message_by_name(name));
    let kind = own.or_else(|| known().get_message_by_name(name));
    let message = kind.and_then(|kind| DynamicMessage::decode(kind, &*any.value).ok());
    let value = message.and_then(|message| serde_json::to_value(message).ok());
    match value {
        Some(Value::Object(mut fields)) => {
            fields.insert("@type".to_owned(), json!(name));
            Value::Object(fields)
        }
        Some(value) => json!({"@type": name, "value": value}),
        None => json!({"@type": name, "bytes": any.value.len()}),
    }
}

/// The types of `google.rpc`, compiled when the first status has details.
fn known() -> &'static DescriptorPool {
    static KNOWN: OnceLock<DescriptorPool> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let mut resolver = ChainFileResolver::new();
        resolver.add(ErrorDetails);
        resolver.add(GoogleFileResolver::new());
        let mut compiler = Compiler::with_file_resolver(resolver);
        let compiled = compiler.open_file(ErrorDetails::NAME);
        debug_assert!(compiled.is_ok(), "the file is ours");
        compiler.descriptor_pool()
    })
}

struct ErrorDetails;

impl ErrorDetails {
    const NAME: &'static str = "google/rpc/error_details.proto";
}

impl FileResolver for ErrorDetails {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match name {
            ErrorDetails::NAME => File::from_source(name, ERROR_DETAILS),
            other => Err(protox::Error::file_not_found(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::json;
    use super::super::metadata::encode_binary;
    use super::super::schema::tests::schema;
    use super::*;

    fn header(details: &[(&str, Vec<u8>)]) -> String {
        let any = |(name, value): &(&str, Vec<u8>)| Any {
            type_url: format!("type.googleapis.com/{name}"),
            value: value.clone(),
        };
        let details = details.iter().map(any).collect();
        let status = RpcStatus { code: 3, message: "bad".to_owned(), details };
        encode_binary(&status.encode_to_vec())
    }

    fn known_bytes(name: &str, text: &str) -> Vec<u8> {
        json::to_bytes(&known().get_message_by_name(name).unwrap(), text).unwrap()
    }

    #[test]
    fn known_details_become_json() {
        let fields = r#"{"fieldViolations":[{"field":"name","description":"too long"}]}"#;
        let details = [
            ("google.rpc.BadRequest", known_bytes("google.rpc.BadRequest", fields)),
            (
                "google.rpc.RetryInfo",
                known_bytes("google.rpc.RetryInfo", r#"{"retryDelay":"1.5s"}"#),
            ),
            ("other.Type", vec![1, 2, 3]),
            ("google.rpc.Help", vec![255]),
            ("google.protobuf.Duration", vec![8, 2]),
        ];
        let details = status_details(header(&details).as_bytes(), None).unwrap();
        assert_eq!(
            details,
            [
                json!({"@type": "google.rpc.BadRequest", "fieldViolations": [{"field": "name", "description": "too long"}]}),
                json!({"@type": "google.rpc.RetryInfo", "retryDelay": "1.500s"}),
                json!({"@type": "other.Type", "bytes": 3}),
                json!({"@type": "google.rpc.Help", "bytes": 1}),
                json!({"@type": "google.protobuf.Duration", "value": "2s"}),
            ]
        );
    }

    #[test]
    fn details_of_the_services_own_types_become_json() {
        let schema = schema("syntax = \"proto3\"; package a; message Why { string text = 1; }");
        let header = header(&[("a.Why", vec![10, 1, b'x'])]);
        let details = status_details(header.as_bytes(), Some(&schema)).unwrap();
        assert_eq!(details, [json!({"@type": "a.Why", "text": "x"})]);
    }

    #[test]
    fn details_have_types_without_their_values() {
        let details = [("google.rpc.Help", vec![255]), ("a.Why", Vec::new())];
        assert_eq!(detail_types(header(&details).as_bytes()), ["google.rpc.Help", "a.Why"]);
        assert!(detail_types(b"%%").is_empty());
        let many = vec![("a.B", Vec::new()); 100];
        assert_eq!(detail_types(header(&many).as_bytes()).len(), STATUS_DETAILS);
    }

    #[test]
    fn other_headers_are_none_and_many_details_are_bounded() {
        assert_eq!(status_details(b"%%", None), None);
        assert_eq!(status_details(b"/////w", None), None);
        assert_eq!(status_details(b"", None), Some(Vec::new()));
        let many = vec![("a.B", Vec::new()); 100];
        assert_eq!(status_details(header(&many).as_bytes(), None).unwrap().len(), STATUS_DETAILS);
    }
}
