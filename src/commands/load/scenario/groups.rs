//! `[group]` of a scenario file: users that send to each other, and the checks on their flows.

use std::time::Duration;

use anyhow::Result;
use load::scenario::{Action, Flow, GROUP_PAIRS_MAX, Group, GroupKind, Role, Step};

use super::keys::GROUP;
use super::tables::Table;
use crate::units;

/// Reads `[group]`.
///
/// # Errors
/// The first error with its line.
pub(super) fn read(top: &Table<'_>, steps: &[Step]) -> Result<Option<Group>> {
    let Some(table) = top.table("group", &GROUP)? else { return Ok(None) };
    let kind = table.parsed("kind", |text| {
        let found = GroupKind::NAMED.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        let found = found.map(|(_, kind)| *kind);
        found.ok_or_else(|| "expected 1:1, 1:N, N:1 or N:N".to_owned())
    })?;
    let kind = kind.ok_or_else(|| table.doc.wrong(table.at, "[group] needs kind"))?;
    let size = table.parsed("size", |text| {
        let size = u32::try_from(units::count(text)?).ok().filter(|size| *size >= 2);
        size.ok_or_else(|| "expected at least 2 users".to_owned())
    })?;
    let size = match (kind, size) {
        (GroupKind::OneToOne, None | Some(2)) => 2,
        (GroupKind::OneToOne, Some(_)) => {
            return Err(table.doc.wrong(table.at, "invalid size: a group of kind 1:1 has 2 users"));
        }
        (_, Some(size)) => size,
        (_, None) => return Err(table.doc.wrong(table.at, "[group] needs size")),
    };
    let seconds = |key, default| -> Result<Duration> {
        let time = table.parsed(key, units::positive_duration)?;
        Ok(time.unwrap_or(Duration::from_secs(default)))
    };
    let stamped = || steps.iter().filter(|step| step.stamped);
    let each = stamped().filter(|step| step.each).count();
    if each > 0 && each < stamped().count() {
        let what = "each must be set on all steps that send {{stamp}}, or on none";
        return Err(table.doc.wrong(table.at, what));
    }
    Ok(Some(Group {
        kind,
        size,
        own: table.boolean("own")?.unwrap_or(false),
        each: each > 0,
        late: seconds("late", 1)?,
        quiet: seconds("quiet", 2)?,
    }))
}

/// Checks the flows against the group, or against its absence.
///
/// # Errors
/// The first error, with the line of the top level.
pub(super) fn check(
    top: &Table<'_>,
    group: Option<&Group>,
    flows: &[Flow],
    steps: &[Step],
) -> Result<()> {
    let wrong = |what: String| Err(top.doc.wrong(top.at, what));
    let of = |flow: &Flow| steps.get(flow.steps.clone()).unwrap_or_default().iter();
    let Some(group) = group else {
        let together = |step: &&Step| matches!(step.action, Action::Meet | Action::Stay);
        if let Some(step) = steps.iter().find(|step| together(step) || step.each) {
            return wrong(format!("step {:?}: meet, stay and each need a [group]", step.name));
        }
        return match flows.iter().find(|flow| flow.role.is_some()) {
            Some(flow) => wrong(format!("flow {:?}: a role needs a [group]", flow.name)),
            None => Ok(()),
        };
    };
    if !steps.iter().any(|step| step.stamped) {
        return wrong("a [group] needs a step that sends {{stamp}}".to_owned());
    }
    if let Some(flow) = flows
        .iter()
        .find(|flow| flow.weight > 0 && !of(flow).any(|step| matches!(step.action, Action::Meet)))
    {
        return wrong(format!("flow {:?}: a [group] needs a step with meet", flow.name));
    }
    for role in [group.role(0), group.role(1)] {
        let may = |flow: &&Flow| flow.weight > 0 && flow.role.is_none_or(|of| of == role);
        if !flows.iter().any(|flow| may(&flow)) {
            let kind = group.kind;
            return wrong(format!("kind {kind}: no flow has the role {}", name(role)));
        }
    }
    Ok(())
}

/// Checks that the users fill groups.
///
/// # Errors
/// The number of users is not a multiple of the size, or there are too many pairs.
pub(super) fn fit(top: &Table<'_>, group: &Group, users: u64) -> Result<()> {
    let size = u64::from(group.size);
    if users == 0 || !users.is_multiple_of(size) {
        let what = format!(
            "{users} users do not divide into groups of {size}: expected a multiple of {size}"
        );
        return Err(top.doc.wrong(top.at, what));
    }
    let pairs = group.pairs(users);
    if pairs > GROUP_PAIRS_MAX {
        let what = format!(
            "{pairs} pairs of sender and receiver: expected at most {GROUP_PAIRS_MAX}, make the groups smaller"
        );
        return Err(top.doc.wrong(top.at, what));
    }
    Ok(())
}

/// Parses a role.
///
/// # Errors
/// An unknown name.
pub(super) fn role(text: &str) -> Result<Role, String> {
    let roles = [Role::Sender, Role::Receiver, Role::Both];
    let found = roles.into_iter().find(|role| name(*role) == text);
    found.ok_or_else(|| "expected sender, receiver or both".to_owned())
}

fn name(role: Role) -> &'static str {
    match role {
        Role::Sender => "sender",
        Role::Receiver => "receiver",
        Role::Both => "both",
    }
}
