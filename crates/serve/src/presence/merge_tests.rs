//! Tests of [`Merged`] against a model, with a clock of their own.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const TTL: u64 = 100;

#[derive(Clone, Debug)]
enum Step {
    Hold(u8, u8, Option<u8>),
    Leave(u8, u8),
    /// The topic is loaded again, and the broker has lost what these bits say.
    Load(u32),
    Wait(u8),
    /// A node has ended.
    End(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (node, id) = (0..4u8, 0..6u8);
    let step = prop_oneof![
        6 => (node.clone(), id.clone(), prop::option::of(0..3u8))
            .prop_map(|(node, id, info)| Step::Hold(node, id, info)),
        4 => (node.clone(), id).prop_map(|(node, id)| Step::Leave(node, id)),
        1 => any::<u32>().prop_map(Step::Load),
        2 => (0..150u8).prop_map(Step::Wait),
        1 => node.prop_map(Step::End),
    ];
    prop::collection::vec(step, 0..200)
}

/// Info, and until when it stays if it is missing.
type Model = BTreeMap<(u8, u8), (Option<u8>, Option<u64>)>;

fn leave(merged: &mut Merged, model: &mut Model, node: u8, id: u8) -> usize {
    let left = merged.leave(NodeId(node.into()), &id.to_string());
    if model.get(&(node, id)).is_some_and(|(_, until_ns)| until_ns.is_none()) {
        model.remove(&(node, id));
        let left = left.expect("it was there");
        assert_eq!(left.still.is_some(), model.keys().any(|(_, other)| *other == id));
        return left.freed;
    }
    assert!(left.is_none());
    0
}

proptest! {
    #[test]
    fn members_are_those_of_all_nodes(steps in steps()) {
        let (mut merged, mut model, mut bytes, mut now_ns) = (Merged::default(), Model::new(), 0, 0);
        for step in steps {
            match step {
                Step::Hold(node, id, info) => {
                    let text = info.map(|info| info.to_string());
                    let held = merged.hold(NodeId(node.into()), &id.to_string(), text.as_deref());
                    bytes = bytes + held.added - held.freed;
                    let before = model.insert((node, id), (info, None));
                    prop_assert_eq!(before.is_some(), held.freed > 0);
                    let shown = merged.info(&id.to_string()).map(|info| info.map(|info| &**info));
                    prop_assert_eq!(shown, Some(text.as_deref()));
                }
                Step::Leave(node, id) => bytes -= leave(&mut merged, &mut model, node, id),
                Step::End(node) => {
                    let of_node = merged.of_node(NodeId(node.into())).len();
                    prop_assert_eq!(of_node, model.keys().filter(|(other, _)| *other == node).count());
                    for id in 0..6 {
                        bytes -= leave(&mut merged, &mut model, node, id);
                    }
                }
                Step::Load(lost) => {
                    let kept = |node: u8, id: u8| lost >> (node * 6 + id) & 1 == 0;
                    let names: Vec<String> = (0..6).map(|id: u8| id.to_string()).collect();
                    let mut loaded = HashSet::new();
                    for (node, id) in model.keys().filter(|(node, id)| kept(*node, *id)) {
                        loaded.insert((NodeId((*node).into()), &*names[usize::from(*id)]));
                    }
                    merged.miss(&loaded, now_ns + TTL);
                    for ((node, id), (_, until_ns)) in &mut model {
                        if !kept(*node, *id) {
                            until_ns.get_or_insert(now_ns + TTL);
                        }
                    }
                }
                Step::Wait(time) => {
                    now_ns += u64::from(time);
                    let before = model.len();
                    model.retain(|_, (_, until_ns)| until_ns.is_none_or(|until_ns| until_ns > now_ns));
                    let ended = merged.expire(now_ns);
                    prop_assert_eq!(ended.len(), before - model.len());
                    bytes -= ended.iter().map(|left| left.freed).sum::<usize>();
                }
            }
            prop_assert_eq!((merged.len(), merged.bytes()), (model.len(), bytes));
            prop_assert_eq!(merged.has_missing(), model.values().any(|(_, until_ns)| until_ns.is_some()));
            for id in 0..6u8 {
                let has = model.keys().any(|(_, other)| *other == id);
                prop_assert_eq!(merged.info(&id.to_string()).is_some(), has);
            }
        }
    }
}
