//! `sfab personalities`: the NICs that the software NIC can look like, with their figures and where each stands.

use crate::failure::Failure;
use crate::software::{self, PERSONALITIES};
use crate::table::{Align, Table};
use crate::terminal::say;
use clap::Args;
use serde_json::{Map, Value, json};

/// The NICs that the software NIC can look like, and where their figures stand.
#[derive(Args)]
#[command(after_help = "Examples:
  sfab personalities
  sfab personalities connectx-6
  sfab run --personality connectx-6 -- ibv_devinfo -v

A figure that is larger than the software NIC's own leaves that one; what is not listed is not known, and its own.")]
pub struct Options {
    /// Only this one, with all figures and sources
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    let chosen: Vec<_> = match &options.name {
        Some(name) => {
            let found = software::personality(name)?;
            PERSONALITIES.iter().filter(|p| p.name == found).collect()
        }
        None => PERSONALITIES.iter().collect(),
    };
    if options.json {
        let all: Vec<Value> = chosen.iter().map(|personality| tree(personality)).collect();
        say!("{:#}", Value::from(all));
        return Ok(());
    }
    if options.name.is_none() {
        let mut table = Table::new(&[("name", Align::Left), ("QP types", Align::Left), ("NIC", Align::Left)]);
        for personality in chosen {
            table.row(vec![personality.name.into(), types(personality), personality.title.into()]);
        }
        say!("{table}");
        return Ok(());
    }
    for personality in chosen {
        say!("{} ({})", personality.title, personality.name);
        say!("{}", personality.about);
        say!("");
        say!("QP types: {}", types(personality));
        say!("          {}", personality.qp_types.source);
        let lacks: Vec<_> = personality.without.value.iter().map(|kind| kind.as_str()).collect();
        say!("lacks:    {}", if lacks.is_empty() { "nothing".into() } else { lacks.join(", ") });
        say!("          {}", personality.without.source);
        let mut source = "";
        for figure in personality.figures {
            if figure.source != source {
                source = figure.source;
                say!("");
                say!("{source}");
            }
            let own = software::own(figure.field);
            let note = if is_limit(figure.value, own) { format!(" (here {own})") } else { String::new() };
            say!("  {:<28}{}{note}", figure.field.name(), figure.value);
        }
    }
    Ok(())
}

/// True if the software NIC cannot have so much.
fn is_limit(value: u64, own: u64) -> bool {
    value > own && own > 1
}

fn types(personality: &software::Personality) -> String {
    let names = personality.qp_types.value.iter().filter(|t| t.has_send_queue()).map(|t| match t.as_str() {
        "XRC_SEND" => "XRC",
        name => name,
    });
    names.collect::<Vec<_>>().join(" ")
}

fn tree(personality: &software::Personality) -> Value {
    let figures: Map<String, Value> = personality
        .figures
        .iter()
        .map(|f| (f.field.name().to_owned(), json!({ "value": f.value, "source": f.source })))
        .collect();
    let kinds: Vec<_> = personality.without.value.iter().map(|kind| kind.as_str()).collect();
    let names: Vec<_> = personality.qp_types.value.iter().map(|t| t.as_str()).collect();
    json!({
        "name": personality.name,
        "title": personality.title,
        "about": personality.about,
        "qp_types": { "value": names, "source": personality.qp_types.source },
        "without": { "value": kinds, "source": personality.without.source },
        "figures": figures,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_has_every_figure_with_its_source() {
        for personality in PERSONALITIES {
            let tree = tree(personality);
            for figure in personality.figures {
                let shown = &tree["figures"][figure.field.name()];
                assert_eq!(
                    (shown["value"].as_u64(), shown["source"].as_str()),
                    (Some(figure.value), Some(figure.source))
                );
            }
        }
        assert_eq!(types(&PERSONALITIES[0]), "RC UC UD");
    }
}
