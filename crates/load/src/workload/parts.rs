//! [`Config::part`]: a run of WebSockets that several generators share. Each has every nth connection, with the
//! target and the channel that the connection would have in a run of one generator.

use crate::requests::Generators;
use crate::workload::stages;
use crate::{Config, Connect};

/// The most entries of a list of channels of a part.
const CHANNELS_MAX: u64 = 65_536;

impl Config {
    /// The part of one of several generators.
    ///
    /// # Errors
    /// What cannot be shared, or not by so many.
    pub fn part(&self, share: Generators) -> Result<Config, String> {
        if self.fanout.is_some() {
            return Err(
                "--fanout cannot be shared by several agents: receipts are timed by the publisher's clock"
                    .to_owned(),
            );
        }
        if self.connect == Connect::OneByOne && share.of > 1 {
            return Err("--connect one-by-one cannot be shared by several agents".to_owned());
        }
        let rate_of = |flag: &str, rate: u64| match share.part_of(rate) {
            0 => Err(format!("{flag} {rate} cannot be shared by {} agents: raise it", share.of)),
            part => Ok(part),
        };
        let mut part = self.clone();
        part.connections = self.sockets_of(share, self.connections);
        for stage in &mut part.stages {
            stage.connections = self.sockets_of(share, stage.connections);
        }
        if !part.stages.is_empty() {
            part.connections = stages::begun(&part.stages).max(1);
        }
        if let Connect::Paced(rate) = self.connect {
            part.connect = Connect::Paced(rate_of("--connect paced:", rate)?);
        }
        // What holds for one process by itself is shared, too.
        let in_flight = self.in_flight.or(match self.connect {
            Connect::Storm => Some(Connect::STORM),
            _ => None,
        });
        part.in_flight = in_flight.map(|most| rate_of("--in-flight", most)).transpose()?;
        if let Some(echo) = &mut part.echo {
            echo.rate = echo.rate.map(|rate| rate_of("--rate", rate)).transpose()?;
        }
        // HTTP/2 connections use targets in turn, sockets channels.
        let targets = self.endpoints.len() as u64;
        let target = |at| self.endpoints.get((number(share, 1, at) % targets.max(1)) as usize);
        part.endpoints = (0..targets).filter_map(target).cloned().collect();
        if let (Some(cable), Some(own)) = (&self.cable, &mut part.cable) {
            let (block, channels) = (self.block(), cable.identifiers.len() as u64);
            let all = if channels > 1 { channels.saturating_mul(block) } else { channels };
            if all > CHANNELS_MAX {
                return Err(format!("--channel and --streams: more than {CHANNELS_MAX} together"));
            }
            let channel =
                |at| cable.identifiers.get((number(share, block, at) % channels.max(1)) as usize);
            own.identifiers = (0..all).filter_map(channel).cloned().collect();
        }
        Ok(part)
    }

    /// Sockets that share a connection.
    fn block(&self) -> u64 {
        u64::from(self.streams.unwrap_or(1).max(1))
    }

    /// Those of so many sockets that are of a generator, which has every nth connection.
    fn sockets_of(&self, share: Generators, sockets: u64) -> u64 {
        share.of_blocks(self.block(), sockets)
    }
}

/// The number in the whole run of a generator's socket.
fn number(share: Generators, block: u64, own: u64) -> u64 {
    (own / block * u64::from(share.of.max(1)) + u64::from(share.nth)) * block + own % block
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::stages::Stage;
    use crate::{Cable, Echo, Endpoint};

    fn config(connections: u64, streams: Option<u32>) -> Config {
        let endpoints = (1..=3).map(|port| Endpoint::parse(&format!("ws://127.0.0.1:{port}/")));
        let identifiers = (0..5).map(|n| format!("c{n}")).collect();
        Config {
            streams,
            cable: Some(Cable::new(identifiers)),
            ..Config::new(endpoints.collect::<Result<_, _>>().unwrap(), connections)
        }
    }

    #[test]
    fn connections_channels_and_targets_of_all_parts_are_those_of_the_whole() {
        for (connections, streams) in [(1_003, None), (17, None), (1_003, Some(10)), (95, Some(30))]
        {
            let whole = config(connections, streams);
            let used = |config: &Config| {
                let mut used = BTreeMap::new();
                let cable = config.cable.as_ref().unwrap();
                for socket in 0..config.connections {
                    let ids = &cable.identifiers;
                    *used.entry(ids[socket as usize % ids.len()].clone()).or_insert(0_u64) += 1;
                }
                for carrier in 0..config.carriers(config.connections) {
                    let target = &config.endpoints[carrier as usize % config.endpoints.len()];
                    *used.entry(target.host.clone()).or_insert(0_u64) += 1;
                }
                used
            };
            for of in 1..=7 {
                let mut sum = BTreeMap::new();
                for nth in 0..of {
                    let part = whole.part(Generators { nth, of }).unwrap();
                    for (name, count) in used(&part) {
                        *sum.entry(name).or_insert(0) += count;
                    }
                }
                assert_eq!(sum, used(&whole), "{of} of {connections} with {streams:?}");
            }
        }
    }

    #[test]
    fn stages_and_rates_are_shared_and_what_cannot_be_is_named() {
        let stage = |connections| Stage { time: Duration::from_secs(1), connections };
        let stages = vec![stage(100), stage(101), stage(7)];
        let echo = Echo {
            size: 20,
            rate: Some(10),
            messages: None,
            duration: None,
            turnover: false,
            content: None,
            validator: None,
            think: None,
            timeout: Duration::from_secs(1),
        };
        let whole = Config { stages, echo: Some(echo), ..config(101, None) };
        let parts: Vec<Config> =
            (0..3).map(|nth| whole.part(Generators { nth, of: 3 }).unwrap()).collect();
        for (at, stage) in whole.stages.iter().enumerate() {
            let sum: u64 = parts.iter().map(|part| part.stages[at].connections).sum();
            assert_eq!(sum, stage.connections);
        }
        let rates = parts.iter().map(|part| part.echo.as_ref().unwrap().rate.unwrap());
        assert_eq!(
            (rates.sum::<u64>(), parts.iter().map(|part| part.connections).sum()),
            (10, 101_u64)
        );
        let refused = |config: Config| config.part(Generators { nth: 0, of: 20 }).unwrap_err();
        assert!(
            refused(Config { connect: Connect::OneByOne, ..whole.clone() }).contains("one-by-one")
        );
        assert!(whole.part(Generators { nth: 15, of: 20 }).unwrap_err().contains("--rate 10"));
    }
}
