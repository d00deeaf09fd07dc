//! Keys into what is shown and what is asked. What changes the fabric is asked back first, and done by whoever holds the connection to control.

use super::Sort;
use super::control::Control;
use super::model::{Model, View};
use crate::failure::Failure;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

/// Rows of a page.
const PAGE: usize = 15;

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// Nothing that others must do.
    Nothing,
    /// Look again now.
    Look,
    /// Change the settings.
    Change(Change),
    /// The end.
    Quit,
    /// The end by Ctrl-C.
    Interrupt,
}

/// A change of the settings of rebalancing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `no`, `optional` or `all`.
    Freeze(&'static str),
    /// On or off.
    DryRun(bool),
    /// Drain a port, or use it again.
    Drain { node: String, device: String, port_num: u8, on: bool },
}

impl Change {
    /// The question before it is done.
    pub fn question(&self) -> String {
        match self {
            Self::Freeze("no") => "Let connections leave hot ports again?".into(),
            Self::Freeze("optional") => "Freeze what can wait: no moves off hot or lossy ports?".into(),
            Self::Freeze(_) => "Freeze everything: no move at all, not even off ports that are down?".into(),
            Self::DryRun(true) => "Begin a dry run: decide and explain, order nothing?".into(),
            Self::DryRun(false) => "End the dry run: order what is decided?".into(),
            Self::Drain { node, device, port_num, on: true } => {
                format!("Drain {node}/{device}/{port_num}: order all connections off it?")
            }
            Self::Drain { node, device, port_num, .. } => format!("Use {node}/{device}/{port_num} again?"),
        }
    }

    /// Does it; a sentence for people. Settings that somebody else has changed meanwhile stay as they are.
    pub fn carry_out(&self, control: &Control) -> Result<String, Failure> {
        let (mut settings, tag) = control.tagged("/v1/rebalance")?;
        self.edit(&mut settings);
        control.put("/v1/rebalance", tag.as_deref(), &settings)?;
        Ok("done: it holds within two seconds".into())
    }

    fn edit(&self, settings: &mut Value) {
        match self {
            Self::Freeze(freeze) => settings["freeze"] = json!(freeze),
            Self::DryRun(on) => settings["dry_run"] = json!(on),
            Self::Drain { node, device, port_num, on } => {
                let port = json!({ "node": node, "device": device, "port_num": port_num });
                let mut drained = settings["drained"].as_array().cloned().unwrap_or_default();
                drained.retain(|other| *other != port);
                if *on {
                    drained.push(port);
                }
                settings["drained"] = drained.into();
            }
        }
    }
}

/// What is being typed or asked.
#[derive(Debug, Default)]
pub struct Keys {
    /// The filter is being typed.
    pub typing: bool,
    /// The keys are being explained.
    pub help: bool,
    /// This is asked back.
    pub asking: Option<Change>,
}

impl Keys {
    /// A key is pressed.
    pub fn press(&mut self, key: KeyEvent, model: &mut Model) -> Asked {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Asked::Interrupt;
        }
        model.notice = None;
        if let Some(change) = self.asking.take() {
            return if matches!(key.code, KeyCode::Char('y' | 'Y')) { Asked::Change(change) } else { Asked::Nothing };
        }
        if self.typing {
            return self.type_filter(key.code, model);
        }
        if std::mem::take(&mut self.help) {
            return Asked::Nothing;
        }
        self.command(key.code, model)
    }

    fn type_filter(&mut self, code: KeyCode, model: &mut Model) -> Asked {
        match code {
            KeyCode::Char(character) => model.filter.push(character),
            KeyCode::Backspace => drop(model.filter.pop()),
            KeyCode::Esc => {
                model.filter.clear();
                self.typing = false;
            }
            KeyCode::Enter => self.typing = false,
            _ => {}
        }
        model.chosen = 0;
        if self.typing || model.view != View::Connections { Asked::Nothing } else { Asked::Look }
    }

    fn command(&mut self, code: KeyCode, model: &mut Model) -> Asked {
        let last = model.rows().saturating_sub(1);
        match code {
            KeyCode::Char('q') => return Asked::Quit,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('p') => model.paused = !model.paused,
            KeyCode::Char('r') => model.reversed = !model.reversed,
            KeyCode::Char('s') => {
                model.sort = match model.sort {
                    Sort::Load => Sort::Sent,
                    Sort::Sent => Sort::Received,
                    Sort::Received => Sort::Connections,
                    Sort::Connections => Sort::Name,
                    Sort::Name => Sort::Load,
                };
            }
            KeyCode::Char('1') => return go(model, View::Ports),
            KeyCode::Char('2') => return go(model, View::Connections),
            KeyCode::Char('3') => return go(model, View::Moves),
            KeyCode::Char('4') => return go(model, View::Events),
            KeyCode::Tab => {
                let next = match model.view {
                    View::Ports => View::Connections,
                    View::Connections => View::Moves,
                    View::Moves => View::Events,
                    View::Events => View::Ports,
                };
                return go(model, next);
            }
            KeyCode::Up | KeyCode::Char('k') => model.chosen = model.chosen.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => model.chosen = (model.chosen + 1).min(last),
            KeyCode::PageUp => model.chosen = model.chosen.saturating_sub(PAGE),
            KeyCode::PageDown => model.chosen = (model.chosen + PAGE).min(last),
            KeyCode::Home => model.chosen = 0,
            KeyCode::End => model.chosen = last,
            KeyCode::Enter if model.view == View::Ports => {
                let row = model.ports().into_iter().nth(model.chosen);
                model.of_port = row.map(|row| (row.node, row.device, row.port_num));
                (model.view, model.chosen) = (View::Connections, 0);
                return Asked::Look;
            }
            KeyCode::Esc => {
                let had = model.of_port.take().is_some();
                model.filter.clear();
                return go(model, if had { View::Ports } else { model.view });
            }
            KeyCode::Char('f') => self.asking = freeze(model),
            KeyCode::Char('t') => {
                let overview = model.picture.as_ref().map(|picture| &picture.overview);
                self.asking = overview.map(|overview| Change::DryRun(!overview.rebalance.dry_run));
            }
            KeyCode::Char('d') if model.view == View::Ports => {
                let row = model.ports().into_iter().nth(model.chosen);
                self.asking = row.map(|row| Change::Drain {
                    on: !row.is_drained(),
                    node: row.node,
                    device: row.device,
                    port_num: row.port_num,
                });
            }
            _ => {}
        }
        Asked::Nothing
    }
}

fn go(model: &mut Model, view: View) -> Asked {
    (model.view, model.chosen) = (view, 0);
    if view == View::Connections { Asked::Look } else { Asked::Nothing }
}

/// The next of nothing, what can wait, everything.
fn freeze(model: &Model) -> Option<Change> {
    let overview = model.picture.as_ref().map(|picture| &picture.overview)?;
    Some(Change::Freeze(match overview.rebalance.freeze.as_str() {
        "no" => "optional",
        "optional" => "all",
        _ => "no",
    }))
}

#[cfg(test)]
mod tests {
    use super::super::screen::tests::model;
    use super::*;

    fn press(keys: &mut Keys, model: &mut Model, code: KeyCode) -> Asked {
        keys.press(KeyEvent::new(code, KeyModifiers::NONE), model)
    }

    #[test]
    fn what_changes_the_fabric_is_done_after_a_yes_and_only_then() {
        let (mut keys, mut model) = (Keys::default(), model());
        assert_eq!(press(&mut keys, &mut model, KeyCode::Char('f')), Asked::Nothing);
        assert_eq!(press(&mut keys, &mut model, KeyCode::Char('n')), Asked::Nothing);
        assert_eq!(press(&mut keys, &mut model, KeyCode::Char('y')), Asked::Nothing, "it was asked no more");
        press(&mut keys, &mut model, KeyCode::Char('f'));
        assert_eq!(press(&mut keys, &mut model, KeyCode::Char('y')), Asked::Change(Change::Freeze("optional")));
        press(&mut keys, &mut model, KeyCode::Char('d'));
        let Asked::Change(change) = press(&mut keys, &mut model, KeyCode::Char('y')) else { panic!("no change") };
        let mut settings = json!({ "freeze": "no", "drained": [], "policy": { "hot_permille": 700 } });
        change.edit(&mut settings);
        let port = json!({ "node": "node3", "device": "sf0", "port_num": 1 });
        assert_eq!(settings, json!({ "freeze": "no", "drained": [port], "policy": { "hot_permille": 700 } }));
    }

    #[test]
    fn a_filter_is_typed_and_taken_back() {
        let (mut keys, mut model) = (Keys::default(), model());
        for code in [KeyCode::Char('/'), KeyCode::Char('l'), KeyCode::Char('q'), KeyCode::Backspace, KeyCode::Char('e')]
        {
            assert_eq!(press(&mut keys, &mut model, code), Asked::Nothing);
        }
        assert_eq!((model.filter.as_str(), keys.typing), ("le", true));
        press(&mut keys, &mut model, KeyCode::Enter);
        assert!(!keys.typing && model.ports().iter().all(|row| row.switch.starts_with("leaf")));
        press(&mut keys, &mut model, KeyCode::Esc);
        assert!(model.filter.is_empty());
        assert_eq!(press(&mut keys, &mut model, KeyCode::Char('q')), Asked::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(keys.press(interrupt, &mut model), Asked::Interrupt);
    }

    #[test]
    fn enter_asks_for_the_connections_of_the_port_and_escape_comes_back() {
        let (mut keys, mut model) = (Keys::default(), model());
        press(&mut keys, &mut model, KeyCode::Down);
        assert_eq!(press(&mut keys, &mut model, KeyCode::Enter), Asked::Look);
        assert_eq!(model.wanted().as_deref(), Some("node=node2&device=sf0&port_num=1"));
        press(&mut keys, &mut model, KeyCode::Esc);
        assert_eq!((model.view, model.wanted()), (View::Ports, None));
    }
}
