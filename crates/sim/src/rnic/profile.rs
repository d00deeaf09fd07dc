//! Profiles: a value and a source for each parameter, read from TOML. A file names what it builds on and what it changes; the reader takes nothing that
//! it does not know, and says line, field and what was expected. The profiles of the crate are data in `profiles/`.

use super::parameter::{Key, PARAMETERS};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use toml::Spanned;

/// Whose figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// What engineers are taught: rounded, without method.
    Course,
    /// What was measured and published, as far as it goes.
    Measured,
}

impl Kind {
    /// Both.
    pub const ALL: [Kind; 2] = [Kind::Course, Kind::Measured];

    /// As it is written.
    pub fn label(self) -> &'static str {
        match self {
            Kind::Course => "course",
            Kind::Measured => "measured",
        }
    }
}

/// A value and where it is from.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// In the unit of the parameter.
    pub value: f64,
    /// Source, and how the value follows from it.
    pub source: String,
}

/// All parameters of one NIC.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Such as `cx6`.
    pub name: String,
    /// Whose figures; none for a file of the user's that does not say.
    pub kind: Kind,
    /// For people.
    pub title: String,
    /// What must be known about it, such as that it is an extrapolation.
    pub note: String,
    figures: Vec<Figure>,
}

/// A profile that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Where it came from: a path, or the name of a built-in one.
    pub origin: String,
    /// Line, from 1; 0 if it is not about one line.
    pub line: usize,
    /// What is wrong, with field and expectation.
    pub what: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.origin, self.what),
            line => write!(f, "{}:{line}: {}", self.origin, self.what),
        }
    }
}

impl std::error::Error for Wrong {}

/// The files of the crate, the ones they build on first.
const FILES: &[(&str, &str)] = &[
    ("base-course", include_str!("profiles/base-course.toml")),
    ("base-measured", include_str!("profiles/base-measured.toml")),
    ("cx3-course", include_str!("profiles/cx3-course.toml")),
    ("cx4-course", include_str!("profiles/cx4-course.toml")),
    ("cx5-course", include_str!("profiles/cx5-course.toml")),
    ("cx6-course", include_str!("profiles/cx6-course.toml")),
    ("cx7-course", include_str!("profiles/cx7-course.toml")),
    ("cx8-course", include_str!("profiles/cx8-course.toml")),
    ("cx3-measured", include_str!("profiles/cx3-measured.toml")),
    ("cib-measured", include_str!("profiles/cib-measured.toml")),
    ("cx4-measured", include_str!("profiles/cx4-measured.toml")),
    ("cx5-measured", include_str!("profiles/cx5-measured.toml")),
    ("cx6-measured", include_str!("profiles/cx6-measured.toml")),
    ("cx7-measured", include_str!("profiles/cx7-measured.toml")),
    ("cx8-measured", include_str!("profiles/cx8-measured.toml")),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// What it builds on, such as `cx6-measured`.
    base: Option<Spanned<String>>,
    name: String,
    kind: Option<Kind>,
    title: String,
    #[serde(default)]
    note: String,
    #[serde(default)]
    values: BTreeMap<String, Spanned<BTreeMap<String, Spanned<Entry>>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    value: Spanned<f64>,
    source: String,
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = Kind::ALL.into_iter().find(|kind| kind.label() == text);
        known.ok_or_else(|| serde::de::Error::custom(format!("kind is `{text}`; expected `course` or `measured`")))
    }
}

impl Profile {
    /// Names of NICs that have a profile, oldest first.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<&str> = Vec::new();
        for (file, _) in FILES.iter().filter(|(file, _)| !file.starts_with("base-")) {
            let name = file.split('-').next().unwrap_or(file);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.sort_by_key(|name| ["cx3", "cib"].iter().position(|old| old == name).unwrap_or(9));
        names
    }

    /// A profile of the crate. The error names those that there are.
    pub fn named(name: &str, kind: Kind) -> Result<Profile, Wrong> {
        let file = format!("{name}-{}", kind.label());
        match FILES.iter().find(|(have, _)| *have == file && !file.starts_with("base-")) {
            Some((origin, text)) => read(origin, text, 0),
            None => Err(Wrong {
                origin: "profile".to_owned(),
                line: 0,
                what: format!("there is no `{name}` of kind {}; there are: {}", kind.label(), every().join(", ")),
            }),
        }
    }

    /// Reads a user's file. It must build on a profile of the crate, or give every parameter.
    pub fn parse(origin: &str, text: &str) -> Result<Profile, Wrong> {
        read(origin, text, 0)
    }

    /// The value, in the parameter's unit.
    pub fn value(&self, key: Key) -> f64 {
        self.figures[key as usize].value
    }

    /// The value with its source.
    pub fn figure(&self, key: Key) -> &Figure {
        &self.figures[key as usize]
    }

    /// A time in picoseconds; the parameter is in nanoseconds.
    pub fn ps(&self, key: Key) -> u64 {
        debug_assert_eq!(key.row().unit(), "ns");
        (self.value(key) * 1000.0).round() as u64
    }

    /// A whole number.
    pub fn count(&self, key: Key) -> u64 {
        self.value(key) as u64
    }

    /// The same profile with one value changed, for what-if questions and tests. Refuses what the table refuses.
    pub fn set(&mut self, key: Key, value: f64, source: &str) -> Result<(), Wrong> {
        let row = key.row();
        let fits = value.is_finite() && (row.low..=row.high).contains(&value) && (!row.whole || value.fract() == 0.0);
        if !fits {
            let what = format!("{} is {value}; expected {}", row.key, row.expectation());
            return Err(Wrong { origin: self.name.clone(), line: 0, what });
        }
        self.figures[key as usize] = Figure { value, source: source.to_owned() };
        Ok(())
    }
}

/// All profiles of the crate, oldest NIC first.
pub fn all() -> Vec<Profile> {
    let both = Profile::names().into_iter().flat_map(|name| Kind::ALL.map(|kind| Profile::named(name, kind)));
    // A NIC that was not taught, or not measured, has one kind only.
    both.filter_map(Result::ok).collect()
}

/// All profiles of the crate, as `name (kind)`.
fn every() -> Vec<String> {
    let both = Profile::names().into_iter().flat_map(|name| Kind::ALL.map(|kind| (name, kind)));
    let there = both.filter(|(name, kind)| FILES.iter().any(|(file, _)| *file == format!("{name}-{}", kind.label())));
    there.map(|(name, kind)| format!("{name} ({})", kind.label())).collect()
}

fn read(origin: &str, text: &str, depth: usize) -> Result<Profile, Wrong> {
    let line_of = |at: usize| text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1;
    let wrong = |at: usize, what: String| Wrong { origin: origin.to_owned(), line: line_of(at), what };
    let file: File = toml::from_str(text).map_err(|error| {
        wrong(error.span().map_or(0, |span| span.start), error.message().trim().replace('\n', ", "))
    })?;
    let mut profile = match &file.base {
        Some(base) => {
            let found = FILES.iter().find(|(name, _)| *name == base.get_ref().as_str());
            let expected = || {
                let all: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
                wrong(base.span().start, format!("base is `{}`; expected one of {}", base.get_ref(), all.join(", ")))
            };
            let (name, text) = found.filter(|_| depth < 4).ok_or_else(expected)?;
            let below = read(name, text, depth + 1)?;
            Profile {
                name: file.name,
                kind: file.kind.unwrap_or(below.kind),
                title: file.title,
                note: file.note,
                ..below
            }
        }
        None => {
            let kind =
                file.kind.ok_or_else(|| wrong(0, "kind is missing; expected `course` or `measured`".to_owned()))?;
            let none = Figure { value: f64::NAN, source: String::new() };
            Profile { name: file.name, kind, title: file.title, note: file.note, figures: vec![none; PARAMETERS.len()] }
        }
    };
    for (section, fields) in &file.values {
        for (field, entry) in fields.get_ref() {
            let name = format!("{section}.{field}");
            let at = entry.span().start;
            let key = Key::of(&name).ok_or_else(|| wrong(at, unknown(section, &name)))?;
            let value = entry.get_ref().value.get_ref();
            let set = profile.set(key, *value, &entry.get_ref().source);
            set.map_err(|error| wrong(entry.get_ref().value.span().start, error.what))?;
            if entry.get_ref().source.trim().is_empty() {
                return Err(wrong(at, format!("{name}: source is empty; expected where the value is from")));
            }
        }
    }
    match Key::ALL.iter().find(|key| profile.value(**key).is_nan()) {
        Some(key) => {
            let row = key.row();
            let what = format!("{} is missing; expected {} ({}), or a `base`", row.key, row.expectation(), row.meaning);
            Err(Wrong { origin: origin.to_owned(), line: 0, what })
        }
        None => Ok(profile),
    }
}

/// A field that is not known: what there is in its section.
fn unknown(section: &str, name: &str) -> String {
    let prefix = format!("{section}.");
    let near: Vec<&str> = PARAMETERS.iter().filter_map(|row| row.key.strip_prefix(&prefix)).collect();
    if near.is_empty() {
        let mut sections: Vec<&str> = PARAMETERS.iter().filter_map(|row| row.key.split('.').next()).collect();
        sections.dedup();
        return format!("there is no section `{section}`; expected one of {}", sections.join(", "));
    }
    format!("there is no parameter `{name}`; expected one of {}", near.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_of_the_crate_is_whole_and_has_sources() {
        for (file, text) in FILES {
            let profile = read(file, text, 0).unwrap_or_else(|error| panic!("{error}"));
            for key in Key::ALL {
                assert!(profile.figure(*key).source.len() > 3, "{file}: {} has no source", key.row().key);
            }
            assert!(file.ends_with(profile.kind.label()), "{file}");
        }
        assert_eq!(every().len(), FILES.len() - 2);
        assert_eq!(all().len(), FILES.len() - 2);
    }

    #[test]
    fn an_extrapolation_says_so() {
        for kind in Kind::ALL {
            assert!(Profile::named("cx8", kind).unwrap().note.contains("extrapolation"));
        }
    }

    const HEAD: &str = "base = \"cx6-measured\"\nname = \"mine\"\ntitle = \"my NIC\"\n";

    fn refused(rest: &str) -> String {
        Profile::parse("mine.toml", &format!("{HEAD}{rest}")).unwrap_err().to_string()
    }

    #[test]
    fn a_file_changes_what_it_names() {
        let text = format!("{HEAD}[values.bus]\nread_ns = {{ value = 700, source = \"own bench\" }}\n");
        let mine = Profile::parse("mine.toml", &text).unwrap();
        assert_eq!(mine.ps(Key::BusRead), 700_000);
        assert_eq!(mine.figure(Key::BusRead).source, "own bench");
        let base = Profile::named("cx6", Kind::Measured).unwrap();
        assert_eq!(mine.value(Key::NicRead), base.value(Key::NicRead));
    }

    #[test]
    fn errors_name_line_field_and_what_was_expected() {
        let error = refused("[values.bus]\nread_nanos = { value = 1, source = \"x\" }\n");
        assert!(error.starts_with("mine.toml:5: there is no parameter `bus.read_nanos`; expected one of "), "{error}");
        let error = refused("[values.bus]\n\nread_ns = { value = -1, source = \"x\" }\n");
        assert_eq!(error, "mine.toml:6: bus.read_ns is -1; expected a number from 0 to 100000 ns");
        let error = refused("[values.bus]\nlanes = { value = 1.5, source = \"x\" }\n");
        assert_eq!(error, "mine.toml:5: bus.lanes is 1.5; expected a whole number from 1 to 32");
        let error = refused("[values.buss]\nlanes = { value = 1, source = \"x\" }\n");
        assert!(error.starts_with("mine.toml:5: there is no section `buss`; expected one of cpu, doorbell"), "{error}");
        let error = refused("[values.bus]\nlanes = { value = 16 }\n");
        assert!(error.starts_with("mine.toml:5: ") && error.contains("source"), "{error}");
        let error = refused("[values.bus]\nlanes = { value = \"many\", source = \"x\" }\n");
        assert!(error.starts_with("mine.toml:5: "), "{error}");
        let error = refused("[values.bus]\nlanes = { value = 16, source = \" \" }\n");
        assert_eq!(error, "mine.toml:5: bus.lanes: source is empty; expected where the value is from");
        let error = refused("colour = 1\n");
        assert!(error.starts_with("mine.toml:4: ") && error.contains("colour"), "{error}");
        let error = refused("[values.bus\n");
        assert!(error.starts_with("mine.toml:4: "), "{error}");
    }

    #[test]
    fn a_file_without_a_base_must_be_whole() {
        let error =
            Profile::parse("x.toml", "name = \"x\"\nkind = \"course\"\ntitle = \"x\"\n").unwrap_err().to_string();
        assert!(error.starts_with("x.toml: cpu.post_ns is missing; expected a number from 0"), "{error}");
        let error = Profile::parse("x.toml", "base = \"cx9\"\nname = \"x\"\ntitle = \"x\"\n").unwrap_err().to_string();
        assert!(error.starts_with("x.toml:1: base is `cx9`; expected one of base-course"), "{error}");
        let error =
            Profile::parse("x.toml", "name = \"x\"\nkind = \"guess\"\ntitle = \"x\"\n").unwrap_err().to_string();
        assert!(error.contains("kind is `guess`; expected `course` or `measured`"), "{error}");
    }

    #[test]
    fn an_unknown_name_lists_those_there_are() {
        let error = Profile::named("cx9", Kind::Course).unwrap_err().to_string();
        assert!(error.contains("cx3 (course)") && error.contains("cib (measured)"), "{error}");
    }
}
