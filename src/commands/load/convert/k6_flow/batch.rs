//! `http.batch`: requests that are sent at the same time, and their responses.

use super::{Binding, Flow, is_call};
use crate::commands::load::convert::js::{Expr, Value};

impl Flow {
    /// Adds the steps of `http.batch(…)`, which are sent at the same time: by index or name. `None`: it is
    /// something else. What is not understood is noted and left out.
    pub(super) fn batch(&mut self, expr: &Expr) -> Option<Vec<(String, usize)>> {
        let Value::Call(_, arguments) = &expr.of else { return None };
        if !is_call(expr, &["http.batch"]) {
            return None;
        }
        let list = arguments.first().map(|list| self.resolved(list).of);
        let requests: Vec<(String, Expr)> = match list {
            Some(Value::Array(list)) => {
                list.into_iter().enumerate().map(|(at, one)| (at.to_string(), one)).collect()
            }
            Some(Value::Object(pairs)) => pairs,
            _ => {
                self.left_out(expr.line, "http.batch of requests that are not known");
                return Some(Vec::new());
            }
        };
        self.batches += 1;
        let mut steps = Vec::new();
        for (name, request) in requests {
            let line = request.line;
            let added = match self.resolved(&request).of {
                Value::Array(arguments) => self.step("request", &arguments),
                Value::Object(pairs) => self.step("request", &batch_arguments(&pairs, line)),
                _ => self.step("get", &[request]),
            };
            match added {
                Ok(step) => {
                    if let Some(step) = self.draft.steps.get_mut(step) {
                        step.batch = Some(self.batches);
                    }
                    steps.push((name, step));
                }
                Err(why) => self.left_out(line, &format!("http.batch: {why}")),
            }
        }
        Some(steps)
    }

    /// The step whose response an expression is.
    pub(super) fn response(&self, expr: &Expr) -> Option<usize> {
        let (name, key) = match &expr.of {
            Value::Name(name) => (name, None),
            Value::Member(object, key) => match &object.of {
                Value::Name(name) => (name, Some(key)),
                _ => return None,
            },
            _ => return None,
        };
        match (self.bindings.get(name)?, key) {
            (Binding::Response(step), None) => Some(*step),
            (Binding::Responses(steps), Some(key)) => {
                steps.iter().find(|(name, _)| name == key).map(|(_, step)| *step)
            }
            // Another name of it.
            (Binding::Value(value), None) if matches!(value.of, Value::Member(..)) => {
                self.response(value)
            }
            _ => None,
        }
    }
}

/// The arguments of `http.request` for an object of `http.batch`.
fn batch_arguments(pairs: &[(String, Expr)], line: usize) -> Vec<Expr> {
    let value =
        |key: &str| pairs.iter().find(|(one, _)| one == key).map(|(_, value)| value.clone());
    let method = Expr { line, of: Value::Text("GET".to_owned()) };
    let nothing = Expr { line, of: Value::Null };
    let method = Some(value("method").unwrap_or(method));
    let body = Some(value("body").unwrap_or(nothing));
    method.into_iter().chain(value("url")).chain(body).chain(value("params")).collect()
}
