//! [`check`]: asks a server whether it serves, before a run.

use anyhow::{Context, Result, bail};
use load::grpc::{Code, HEALTH_SERVICE, Schema};
use serde_json::Value;

use super::client::{Called, call};
use super::target::Target;

/// Asks for the health of a service, or of the server if the name is empty.
///
/// # Errors
/// It does not serve, or does not say so, with what to do.
pub(in crate::commands::load) fn check(
    target: &Target,
    metadata: &[(String, String)],
    service: &str,
) -> Result<()> {
    let path = format!("/{HEALTH_SERVICE}/Check");
    let method = Schema::health()?.method(&path)?;
    let request = serde_json::json!({ "service": service }).to_string();
    let request = method.request_of_json(&request)?;
    let what = match service {
        "" => "the server".to_owned(),
        service => format!("service {service:?}"),
    };
    let answer = match call(target, metadata, &path, &request)? {
        Called::Interrupted => bail!("interrupted while {target} was asked for its health"),
        Called::Failed(Code::UNIMPLEMENTED, _) => bail!(
            "{target}: no health service (UNIMPLEMENTED): leave out --health, or register {HEALTH_SERVICE}"
        ),
        Called::Failed(Code(5), _) => {
            bail!("{target}: its health service does not know {what} (NOT_FOUND)")
        }
        Called::Failed(code, message) => {
            bail!("{target}: the health check failed ({code}: {message})")
        }
        Called::Answer(answer) => method.answer_to_json(&answer)?,
    };
    let answer: Value = serde_json::from_str(&answer).context("the answer of a health check")?;
    match answer.get("status").and_then(Value::as_str).unwrap_or("UNKNOWN") {
        "SERVING" => Ok(()),
        status => bail!(
            "{target}: {what} is not serving ({status}): nothing was sent; try again once it is, or leave \
             out --health"
        ),
    }
}
