//! What a case is. The files hold templates: a template with `each = { mtu = [256, 512] }` is one case for each value,
//! with `{mtu}` replaced everywhere. Other placeholders stand for what only the run knows and are filled by `run`.

use super::layout::Kind;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A file of cases.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The heading under which the page shows them.
    title: String,
    case: Vec<Template>,
}

/// A case, or several that differ in a few words.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// Its name, unique among all files; with the layout it names the case.
    pub name: String,
    /// What is shown by it, for the page; may be empty.
    #[serde(default)]
    pub remark: String,
    /// Where it runs; default in both layouts.
    #[serde(default = "Kind::all")]
    pub layouts: Vec<Kind>,
    /// Placeholders and their values: one case for each combination.
    #[serde(default)]
    pub each: BTreeMap<String, Vec<Word>>,
    /// MTU of the cable's interfaces; default 1500, for an active path MTU of 1024.
    #[serde(default = "ethernet")]
    pub mtu: String,
    /// Options of `sfab run` on both sides, such as `--personality rxe`.
    #[serde(default)]
    pub run: String,
    /// Options of `sfab run` on the server's side.
    #[serde(default)]
    pub run_server: String,
    /// Options of `sfab run` on the client's side.
    #[serde(default)]
    pub run_client: String,
    /// Environment of both sides.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Shell text before both, on the server's side.
    #[serde(default)]
    pub before: String,
    /// The server's command. `! ` in front: a shell line, not under `sfab run`.
    #[serde(default)]
    pub server: String,
    /// The client's command; started when the server waits.
    #[serde(default)]
    pub client: String,
    /// A shell script of this folder, with arguments, in the place of both.
    #[serde(default)]
    pub script: String,
    /// Shell text after both ended, on the server's side; must end with 0.
    #[serde(default)]
    pub after: String,
    /// The server does not end by itself: it gets a SIGINT when the client has ended.
    #[serde(default)]
    pub server_stays: bool,
    /// The server's exit code.
    #[serde(default)]
    pub server_exit: i32,
    /// The client's exit code.
    #[serde(default)]
    pub client_exit: i32,
    /// What the server's output must hold. `a|b`: one of them.
    #[serde(default)]
    pub server_has: Vec<String>,
    /// What the client's output must hold.
    #[serde(default)]
    pub client_has: Vec<String>,
    /// What the output of `after` must hold.
    #[serde(default)]
    pub after_has: Vec<String>,
    /// Lines with these words are no complaint.
    #[serde(default)]
    pub allow: Vec<String>,
    /// So many lines of the client's output begin with a number.
    #[serde(default)]
    pub rows: String,
    /// Programs it needs beside the server's and the client's.
    #[serde(default)]
    pub needs: Vec<String>,
    /// The output is that of Python's unittest, judged by the list of skips.
    #[serde(default)]
    pub pyverbs: bool,
    /// Seconds after which it failed.
    #[serde(default = "patience")]
    pub seconds: u64,
}

impl Template {
    /// True if the server has the port of its case; others have one of their own.
    pub fn has_port(&self) -> bool {
        self.server.contains("{port}")
    }

    /// True if the server listens, by TCP or rdma_cm, and the client calls it.
    pub fn is_called(&self) -> bool {
        self.has_port() || self.server.contains("udaddy")
    }
}

fn ethernet() -> String {
    "1500".to_owned()
}

/// Far more than any case needs on a machine of its own: only what hangs should find out.
const fn patience() -> u64 {
    90
}

/// A template with its values filled in, in one layout.
#[derive(Clone, Debug)]
pub struct Case {
    /// The template, with `each` filled in.
    pub what: Template,
    /// Where it runs.
    pub kind: Kind,
}

impl Case {
    /// `name@layout`.
    pub fn id(&self) -> String {
        format!("{}@{}", self.what.name, self.kind.word())
    }

    /// True if one of the words is its name, its id, or the beginning of one.
    pub fn is_named_by(&self, words: &[String]) -> bool {
        words.is_empty() || words.iter().any(|word| self.id().starts_with(word.as_str()))
    }
}

impl Template {
    /// One template for each combination of `each`.
    pub fn filled(&self) -> Vec<Self> {
        let mut all = vec![Self { each: BTreeMap::new(), ..self.clone() }];
        for (key, values) in &self.each {
            let one = |template: &Self| -> Vec<Self> {
                values.iter().map(|value| template.with(&format!("{{{key}}}"), &value.to_string())).collect()
            };
            all = all.iter().flat_map(one).collect();
        }
        for template in &mut all {
            // A value may be an option: `rstream -T a` is called `rstream-T-a`.
            let parts: Vec<&str> =
                template.name.split([' ', '-', '=', '%', '/']).filter(|part| !part.is_empty()).collect();
            template.name = parts.join("-");
        }
        all
    }

    /// With `placeholder` replaced in every text.
    fn with(&self, placeholder: &str, value: &str) -> Self {
        let mut new = self.clone();
        let mut texts: Vec<&mut String> = vec![
            &mut new.name,
            &mut new.mtu,
            &mut new.run,
            &mut new.run_server,
            &mut new.run_client,
            &mut new.before,
            &mut new.server,
            &mut new.client,
            &mut new.script,
            &mut new.after,
            &mut new.rows,
        ];
        texts.extend(new.env.values_mut());
        for list in [&mut new.server_has, &mut new.client_has, &mut new.after_has] {
            texts.extend(list.iter_mut());
        }
        for text in texts {
            *text = text.replace(placeholder, value);
        }
        new
    }
}

/// A value of `each`: a number or a text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Word {
    /// A number.
    Number(i64),
    /// A text.
    Text(String),
}

impl std::fmt::Display for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// The files of a folder in the order of their names: title and templates.
pub fn read(folder: &Path) -> Result<Vec<(String, Vec<Template>)>, String> {
    let names = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<_> = names.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    let one = |path: &std::path::PathBuf| {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let file: File = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok((file.title, file.case))
    };
    paths.iter().map(one).collect()
}

/// All cases of a folder; an error if two have one name.
pub fn all(folder: &Path) -> Result<Vec<Case>, String> {
    let mut cases: Vec<Case> = Vec::new();
    for template in read(folder)?.iter().flat_map(|(_, templates)| templates) {
        for what in template.filled() {
            for kind in &template.layouts {
                cases.push(Case { what: what.clone(), kind: *kind });
            }
        }
    }
    let mut ids: Vec<String> = cases.iter().map(Case::id).collect();
    ids.sort();
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("two cases are called {}", pair[0]));
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_makes_a_case() {
        let text = "title = 'x'\n[[case]]\nname = 'a-{mtu}-{e}'\nclient = 'p -m {mtu} {e} {server}'\n\
                    each = { mtu = [256, 512], e = ['', '-e'] }";
        let file: File = toml::from_str(text).unwrap();
        let filled = file.case[0].filled();
        let commands: Vec<&str> = filled.iter().map(|template| template.client.as_str()).collect();
        assert_eq!(
            commands,
            ["p -m 256  {server}", "p -m 512  {server}", "p -m 256 -e {server}", "p -m 512 -e {server}"]
        );
        assert_eq!((filled[1].name.as_str(), filled[3].name.as_str()), ("a-512", "a-512-e"));
    }

    #[test]
    fn an_unknown_key_is_an_error() {
        assert!(toml::from_str::<File>("title = 'x'\n[[case]]\nname = 'a'\nclinet = 'p'").is_err());
    }
}
