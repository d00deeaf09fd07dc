//! What LLDP has learnt (IEEE 802.1AB), from the JSON that `lldpctl` prints: which port of which switch is at the other end of each interface. Both of its forms are
//! read, `-f json` (keys are names, single things stand alone) and `-f json0` (everything is a list). It starts no program.

use super::report::SwitchPort;
use serde_json::Value;
use std::collections::BTreeMap;

/// Neighbours by interface. An interface with several neighbours (a hub, a virtual machine behind it) is left out: it is not known which one is the switch.
/// Fails only if this is no JSON of `lldpctl`.
pub fn parse_lldpctl(text: &str) -> Result<BTreeMap<String, SwitchPort>, String> {
    let root: Value = serde_json::from_str(text).map_err(|e| format!("lldpctl's answer is not JSON: {e}"))?;
    let lldp = root.get("lldp").map(first).ok_or("lldpctl's answer has no `lldp`: run it with `-f json0`")?;
    let mut found: BTreeMap<String, Vec<SwitchPort>> = BTreeMap::new();
    for (name, interface) in lldp.get("interface").into_iter().flat_map(named) {
        if let Some(neighbour) = neighbour(interface) {
            found.entry(name).or_default().push(neighbour);
        }
    }
    let single = |(name, mut all): (String, Vec<SwitchPort>)| (all.len() == 1).then(|| (name, all.remove(0)));
    Ok(found.into_iter().filter_map(single).collect())
}

fn neighbour(interface: &Value) -> Option<SwitchPort> {
    let (name, chassis) = named(interface.get("chassis")?).into_iter().next()?;
    let id = |of: &Value| text(of.get("id")?);
    let switch = if name.is_empty() { id(chassis)? } else { name };
    let port = interface.get("port").map(first)?;
    // A port's ID may be its MAC address, which no configuration names: its description says more then.
    let kind = first(port.get("id")?).get("type").and_then(Value::as_str).unwrap_or_default();
    let description = port.get("descr").and_then(text).filter(|description| !description.is_empty());
    let port = if kind == "mac" { description.or_else(|| id(port)) } else { id(port) };
    Some(SwitchPort { switch, port: port? })
}

/// The only or first of a list, or the thing itself.
fn first(value: &Value) -> &Value {
    match value {
        Value::Array(all) => all.first().unwrap_or(&Value::Null),
        other => other,
    }
}

/// Things with their names: members of an object, or objects of a list that have a `name`. A thing without a name has an empty one.
fn named(value: &Value) -> Vec<(String, &Value)> {
    match value {
        Value::Array(all) => all.iter().flat_map(named).collect(),
        Value::Object(members) => {
            if let Some(name) = members.get("name").and_then(text) {
                return vec![(name, value)];
            }
            if members.contains_key("id") || members.contains_key("chassis") {
                return vec![(String::new(), value)];
            }
            members.iter().map(|(name, member)| (name.clone(), member)).collect()
        }
        _ => Vec::new(),
    }
}

/// A text, alone or as the `value` of an object.
fn text(value: &Value) -> Option<String> {
    match first(value) {
        Value::String(text) => Some(text.clone()),
        Value::Object(members) => members.get("value")?.as_str().map(str::to_owned),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(switch: &str, port: &str) -> SwitchPort {
        SwitchPort { switch: switch.into(), port: port.into() }
    }

    const PLAIN: &str = r#"{"lldp":{"interface":[
        {"eth0":{"via":"LLDP","rid":"1","age":"0 day, 00:01:02",
          "chassis":{"leaf1":{"id":{"type":"mac","value":"ae:2e:f5:f9:a1:7a"},"descr":"a switch","mgmt-ip":["10.0.0.9","fe80::1"],
            "capability":[{"type":"Bridge","enabled":true},{"type":"Router","enabled":true}]}},
          "port":{"id":{"type":"ifname","value":"Ethernet12"},"descr":"to node7","ttl":"120"}}},
        {"eth1":{"via":"LLDP","chassis":{"leaf2":{"id":{"type":"mac","value":"de:2f:0f:d2:00:e6"}}},
          "port":{"id":{"type":"mac","value":"de:2f:0f:d2:00:e6"},"descr":"swp2"},"ttl":{"ttl":"4"}}}]}}"#;

    #[test]
    fn both_forms_say_the_same() {
        let expected: BTreeMap<String, SwitchPort> =
            [("eth0".into(), at("leaf1", "Ethernet12")), ("eth1".into(), at("leaf2", "swp2"))].into();
        assert_eq!(parse_lldpctl(PLAIN), Ok(expected.clone()));
        let lists = r#"{"lldp":[{"interface":[
            {"name":"eth0","chassis":[{"id":[{"type":"mac","value":"ae:2e:f5:f9:a1:7a"}],"name":[{"value":"leaf1"}],"descr":[{"value":"a switch"}]}],
             "port":[{"id":[{"type":"ifname","value":"Ethernet12"}],"descr":[{"value":"to node7"}]}],"ttl":[{"ttl":"120"}]},
            {"name":"eth1","chassis":[{"id":[{"type":"mac","value":"de:2f:0f:d2:00:e6"}],"name":[{"value":"leaf2"}]}],
             "port":[{"id":[{"type":"mac","value":"de:2f:0f:d2:00:e6"}],"descr":[{"value":"swp2"}]}]}]}]}"#;
        assert_eq!(parse_lldpctl(lists), Ok(expected));
    }

    #[test]
    fn a_single_interface_and_a_chassis_without_a_name_are_read() {
        let text = r#"{"lldp":{"interface":{"eth0":{"chassis":{"id":{"type":"mac","value":"00:11:22:33:44:55"}},
            "port":{"id":{"type":"local","value":"7"},"descr":"port seven"}}}}}"#;
        assert_eq!(parse_lldpctl(text), Ok([("eth0".into(), at("00:11:22:33:44:55", "7"))].into()));
    }

    #[test]
    fn nobody_and_several_at_one_interface_are_nobody() {
        assert_eq!(parse_lldpctl(r#"{"lldp":{}}"#), Ok(BTreeMap::new()));
        assert_eq!(parse_lldpctl(r#"{"lldp":[{}]}"#), Ok(BTreeMap::new()));
        let twice = PLAIN.replace("eth1", "eth0");
        assert_eq!(parse_lldpctl(&twice), Ok(BTreeMap::new()));
    }

    #[test]
    fn what_is_not_an_answer_is_refused_and_odd_ones_are_left_out() {
        assert!(parse_lldpctl("no json").unwrap_err().contains("not JSON"));
        assert!(parse_lldpctl("{}").unwrap_err().contains("json0"));
        for odd in [
            "1",
            "[]",
            "{\"interface\":3}",
            "{\"interface\":[{\"eth0\":null}]}",
            "{\"interface\":[{\"eth0\":{\"chassis\":[]}}]}",
        ] {
            assert_eq!(parse_lldpctl(&format!("{{\"lldp\":{odd}}}")), Ok(BTreeMap::new()), "{odd}");
        }
    }
}
