//! The service of health checks (`grpc.health.v1` of gRPC), which is built in: it needs no files and no reflection.

use protox::Compiler;
use protox::file::{File, FileResolver};

use super::schema::{Schema, SchemaError};

/// The name of the service.
pub const HEALTH_SERVICE: &str = "grpc.health.v1.Health";

const HEALTH: &str = r#"syntax = "proto3";
package grpc.health.v1;
message HealthCheckRequest { string service = 1; }
message HealthCheckResponse {
  enum ServingStatus { UNKNOWN = 0; SERVING = 1; NOT_SERVING = 2; SERVICE_UNKNOWN = 3; }
  ServingStatus status = 1;
}
message HealthListRequest {}
message HealthListResponse { map<string, HealthCheckResponse> statuses = 1; }
service Health {
  rpc Check(HealthCheckRequest) returns (HealthCheckResponse);
  rpc List(HealthListRequest) returns (HealthListResponse);
  rpc Watch(HealthCheckRequest) returns (stream HealthCheckResponse);
}
"#;

impl Schema {
    /// The service of health checks.
    ///
    /// # Errors
    /// None but of the compiler.
    pub fn health() -> Result<Schema, SchemaError> {
        let broken = |why: protox::Error| SchemaError::new(format!("{why:?}"));
        let mut compiler = Compiler::with_file_resolver(Health);
        compiler.open_file(Health::NAME).map_err(broken)?;
        let files = compiler.file_descriptor_set().file;
        Schema::of_files(files, vec![HEALTH_SERVICE.to_owned()])
    }
}

/// Resolves the file of the service.
struct Health;

impl Health {
    const NAME: &str = "grpc/health/v1/health.proto";
}

impl FileResolver for Health {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match name {
            Health::NAME => File::from_source(name, HEALTH),
            other => Err(protox::Error::file_not_found(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_encoded_and_its_answer_read() {
        let schema = Schema::health().unwrap();
        let method = schema.method("/grpc.health.v1.Health/Check").unwrap();
        assert_eq!(method.request_of_json(r#"{"service":"a"}"#).unwrap(), b"\x0a\x01a");
        let answer = method.answer_to_json(b"\x08\x02").unwrap();
        assert!(answer.contains("NOT_SERVING"), "{answer}");
    }
}
