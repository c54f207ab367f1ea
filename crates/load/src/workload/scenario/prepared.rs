//! What is known of a step before the run: the parts of its answer that are needed, and its request if it
//! is always the same.

use crate::workload::requests::answer::Wants;
use crate::workload::requests::request::Request;
use crate::workload::scenario::check::Check;
use crate::workload::scenario::extract::BODY_KEPT_MAX;
use crate::workload::scenario::render::{RenderContext, Renderer};
use crate::workload::scenario::speak::Action;
use crate::workload::scenario::template::Template;
use crate::workload::scenario::user::User;
use crate::workload::scenario::{Scenario, Step};

/// The parts of an answer that checks, captures, cookies and redirects need.
pub(crate) fn wants(scenario: &Scenario, step: &Step) -> Wants {
    let checks = step.checks.iter().map(Check::wants);
    let captures = step.captures.iter().map(|capture| capture.source.wants());
    let own = step.call.is_none() && (scenario.cookies || scenario.redirects > 0);
    let own = own.then_some(Wants::Head);
    let confirmed = matches!(step.action, Action::Subscribe(_));
    let confirmed = confirmed.then_some(Wants::Body(BODY_KEPT_MAX));
    let all: Vec<Wants> = checks.chain(captures).chain(own).chain(confirmed).collect();
    match () {
        () if all.iter().any(|wants| matches!(wants, Wants::Body(_))) => Wants::Body(BODY_KEPT_MAX),
        () if all.contains(&Wants::Head) => Wants::Head,
        () => Wants::Nothing,
    }
}

/// The request of a constant step, rendered once.
pub(crate) fn fixed(scenario: &Scenario, step: &Step, renderer: &mut Renderer) -> Option<Request> {
    let is_request = matches!(step.action, Action::Request);
    if let Some(call) = &step.call {
        return if is_request { call.fixed(scenario, step) } else { None };
    }
    let headers = step.headers.iter().map(|(_, value)| value);
    let texts = headers.chain([&step.target]).chain(&step.body).chain(&step.basic);
    if !is_request || scenario.cookies || !texts.into_iter().all(Template::is_constant) {
        return None;
    }
    let user = User::new(scenario, 0);
    let (values, jar, follow) = (user.values(scenario, 0), None, None);
    let endpoint = scenario.endpoints.get(usize::from(step.endpoint))?;
    let asked = RenderContext { scenario, step, endpoint, values, jar, follow };
    let mut request = Request::default();
    let is_head = step.method == "HEAD";
    request.set_rendered(step.endpoint, is_head, |out| renderer.render(&asked, out));
    Some(request)
}
