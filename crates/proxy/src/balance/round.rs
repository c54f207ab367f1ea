//! Smooth weighted round robin.

use super::Member;

/// One round of smooth weighted round robin, as nginx does it: in each turn every member gains its
/// weight as credit; the one with most credit takes the turn and pays the total of all weights.
pub(super) fn round(members: &[Member]) -> Vec<u16> {
    let divisor = members.iter().fold(0, |divisor, member| common(divisor, member.weight));
    let weights: Vec<i64> =
        members.iter().map(|member| i64::from(member.weight / divisor.max(1))).collect();
    let total: i64 = weights.iter().sum();
    let mut credit = vec![0i64; weights.len()];
    let mut round = Vec::new();
    for _ in 0..total {
        for (credit, weight) in credit.iter_mut().zip(&weights) {
            *credit += weight;
        }
        // The first of equals.
        let richest = credit.iter_mut().enumerate().rev().max_by_key(|(_, credit)| **credit);
        let Some((index, credit)) = richest else { break };
        *credit -= total;
        round.push(u16::try_from(index).unwrap_or_default());
    }
    round
}

/// The greatest common divisor.
fn common(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { common(b, a % b) }
}
