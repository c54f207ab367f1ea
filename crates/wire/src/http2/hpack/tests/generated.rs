//! Generated lists, blocks and changes of the table's size.

use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(crate::cases(cases)) }
}

type Field = (Vec<u8>, Vec<u8>);

/// Names and values of which some are in the static table, some repeat, and some are any bytes.
fn field() -> impl Strategy<Value = Field> {
    let listed = (0..61usize).prop_map(|place| {
        let (name, value) = static_table::ENTRIES[place];
        (name.to_vec(), value.to_vec())
    });
    let named = (0..61usize, "[a-z0-9/ ]{0,12}")
        .prop_map(|(place, value)| (static_table::ENTRIES[place].0.to_vec(), value.into_bytes()));
    let repeated =
        ("x-[a-c]", "[0-2]").prop_map(|(name, value)| (name.into_bytes(), value.into_bytes()));
    let any =
        (prop::collection::vec(any::<u8>(), 0..30), prop::collection::vec(any::<u8>(), 0..300));
    prop_oneof![2 => listed, 2 => named, 4 => repeated, 1 => any]
}

#[derive(Clone, Debug)]
enum Step {
    /// Fields, each with its place in [`INDEXING`].
    Block(Vec<(Field, u8)>),
    Limit(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let block = prop::collection::vec((field(), 0..4u8), 0..12).prop_map(Step::Block);
    let limit = prop_oneof![Just(0), Just(4096), Just(65_536), 0..500u32].prop_map(Step::Limit);
    prop_oneof![6 => block, 1 => limit]
}

const INDEXING: [Indexing; 4] =
    [Indexing::Auto, Indexing::Incremental, Indexing::Without, Indexing::Never];

proptest! {
    #![proptest_config(config(150))]

    /// The decoder's table follows the encoder's through any blocks and limits.
    #[test]
    fn blocks_of_a_connection_round_trip(
        most in prop_oneof![Just(4096), 0..300u32],
        steps in prop::collection::vec(step(), 1..30),
    ) {
        let (mut encoder, mut decoder) = (Encoder::with_table(most), Decoder::default());
        let mut list = HeaderList::new();
        for step in steps {
            match step {
                Step::Limit(limit) => {
                    encoder.set_limit(limit);
                    decoder.set_limit(limit);
                }
                Step::Block(fields) => {
                    let mut out = vec![];
                    encoder.begin(&mut out);
                    for ((name, value), indexing) in &fields {
                        encoder.field(name, value, INDEXING[usize::from(*indexing)], &mut out);
                    }
                    prop_assert_eq!(decoder.decode(&out, &mut list, LIST_BYTES), Ok(()));
                    prop_assert_eq!(list.len(), fields.len());
                    for (got, ((name, value), indexing)) in list.iter_with_flag().zip(&fields) {
                        prop_assert_eq!((got.0, got.1), (&name[..], &value[..]));
                        prop_assert!(got.2 || INDEXING[usize::from(*indexing)] != Indexing::Never);
                    }
                    prop_assert_eq!(decoder.table.size(), encoder.table.size());
                    prop_assert_eq!(decoder.table.max(), encoder.table.max());
                    prop_assert!(encoder.table.max() <= most);
                }
            }
        }
    }

    /// Any bytes are decoded within the limit or refused, and the list is what was decoded so far.
    #[test]
    fn any_block_is_bounded(
        blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..6),
        limit in 0..500usize,
    ) {
        let mut decoder = Decoder::new(300);
        let mut list = HeaderList::new();
        for block in blocks {
            let result = decoder.decode(&block, &mut list, limit);
            prop_assert!(list.size() <= limit);
            prop_assert!(decoder.table.size() <= 300);
            prop_assert_eq!(list.size(), list.iter().map(|(n, v)| n.len() + v.len() + 32).sum::<usize>());
            if !matches!(result, Ok(()) | Err(Violation::HeaderListTooLarge)) {
                break;
            }
        }
    }

    /// The table beside a plain list of entries.
    #[test]
    fn the_table_is_a_list_of_entries(
        steps in prop::collection::vec((field(), prop::option::weighted(0.1, 0..400u32)), 1..80),
    ) {
        let mut table = table::Table::new(400);
        let (mut model, mut max) = (Vec::<Field>::new(), 400usize);
        let size = |model: &[Field]| {
            model.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>()
        };
        for ((name, value), resize) in steps {
            if let Some(to) = resize {
                table.resize(to);
                max = to as usize;
            } else {
                table.insert(&name, &value);
                model.insert(0, (name.clone(), value.clone()));
            }
            while size(&model) > max {
                // Only the entry that was inserted last can be too large by itself.
                model.pop();
            }
            prop_assert_eq!(table.size() as usize, size(&model));
            prop_assert_eq!(table.room(), max - size(&model));
            for (age, (name, value)) in model.iter().enumerate() {
                let mut out = vec![];
                let index = 62 + age as u32;
                prop_assert_eq!(table.copy_field(index, &mut out), Some(name.len()));
                prop_assert_eq!(&out, &[&name[..], value].concat());
                prop_assert_eq!(table.lengths(index), Some((name.len(), value.len())));
            }
            prop_assert_eq!(table.lengths(62 + model.len() as u32), None);
            let place = |found: Option<usize>| found.map(|age| 62 + age as u32);
            let same = (name.clone(), value.clone());
            let found = model.iter().position(|entry| *entry == same);
            prop_assert_eq!(table.find_field(&name, &value), place(found));
            let named = model.iter().position(|entry| entry.0 == name);
            prop_assert_eq!(table.find_name(&name), place(named));
        }
    }
}
