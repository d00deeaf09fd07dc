//! A run to scrub through in the browser: one page with the fabric drawn in layers, queues and pauses at every sample, and a slider. For small runs: what is
//! too large is refused rather than drawn badly.

use super::world::World;
use std::fmt::Write;

/// Ports that one page shows.
pub const MOST_PORTS: usize = 1_024;
/// Samples that one page shows; later ones are left out.
const MOST_SAMPLES: usize = 4_000;
const PAGE: &str = include_str!("timeline.html");

/// What a page is made of.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    nodes: String,
    links: String,
    frames: String,
    samples: usize,
    sent: Vec<u64>,
    at_ps: u64,
}

impl Timeline {
    /// Of a fabric that has at most [`MOST_PORTS`] ports.
    pub fn new(world: &World) -> Result<Self, String> {
        let ports = world.ports().len();
        if ports > MOST_PORTS {
            return Err(format!(
                "a time line shows at most {MOST_PORTS} ports and this fabric has {ports}: make it smaller"
            ));
        }
        let topology = world.topology();
        let (mut nodes, mut links) = (String::new(), String::new());
        for node in 0..topology.hosts + topology.switches {
            let layer = match node.checked_sub(topology.hosts) {
                None => 0,
                Some(switch) => topology.layers.get(switch as usize).map_or(1, |layer| u32::from(*layer) + 1),
            };
            let _ = write!(nodes, "{}[\"{}\",{layer}]", if node == 0 { "" } else { "," }, topology.name(node));
        }
        for (index, link) in topology.links.iter().enumerate() {
            let _ =
                write!(links, "{}[{},{},{}]", if index == 0 { "" } else { "," }, link.a, link.b, link.bps as f64 / 1e9);
        }
        Ok(Self { nodes, links, sent: vec![0; ports], ..Self::default() })
    }

    /// A look: ports that hold, send or are stopped.
    pub fn sample(&mut self, world: &World) {
        let span_ps = world.now().0 - self.at_ps;
        self.at_ps = world.now().0;
        if self.samples >= MOST_SAMPLES || span_ps == 0 {
            return;
        }
        let _ = write!(self.frames, "{}[{:.3},[", if self.samples == 0 { "" } else { ",\n" }, world.now().as_us());
        self.samples += 1;
        let mut first = true;
        for (index, port) in world.ports().iter().enumerate() {
            let bits = (port.tx_bytes - self.sent[index]) as f64 * 8.0;
            self.sent[index] = port.tx_bytes;
            let used = (bits / (port.rate.bps as f64 * span_ps as f64 / 1e12) * 100.0).round().min(100.0) as u32;
            let paused = u8::from(port.stopped() != 0);
            if port.queued_bytes > 0 || used > 0 || paused > 0 {
                let comma = if std::mem::take(&mut first) { "" } else { "," };
                let _ = write!(self.frames, "{comma}[{index},{},{used},{paused}]", port.queued_bytes);
            }
        }
        self.frames += "]]";
    }

    /// The page.
    pub fn page(&self, title: &str) -> String {
        let title = title.replace('&', "&amp;").replace('<', "&lt;");
        let data = format!("{{\"nodes\":[{}],\"links\":[{}],\"frames\":[{}]}}", self.nodes, self.links, self.frames);
        PAGE.replace("{{title}}", &title).replace("{{data}}", &data)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Model;
    use super::super::time::Ps;
    use super::super::topology::Topology;
    use super::super::validate::trial::{WIRE, profile};
    use super::*;

    #[test]
    fn a_page_has_every_sample_and_large_fabrics_are_refused() {
        let world = |topology| World::new(topology, Model::reference(), profile("none", &[]).unwrap(), 1).unwrap();
        let small = world(Topology::star(3, WIRE));
        let mut timeline = Timeline::new(&small).unwrap();
        // Nothing has happened at time 0: there is no frame.
        timeline.sample(&small);
        let page = timeline.page("a<b");
        assert!(page.contains("\"host 2\",0]") && page.contains("\"frames\":[]") && page.contains("a&lt;b"));
        let large = world(Topology::fat_tree(16, WIRE, WIRE));
        assert!(Timeline::new(&large).unwrap_err().contains("at most 1024 ports"));
        assert_eq!(large.now(), Ps::ZERO);
    }
}
