//! A table of a report as Parquet: one row group, no compression, every column with its type. Units stand in the file's metadata (`units`, a JSON object by
//! column), and with them what run it was: scenario, point of the sweep, seed, fingerprint. The same run writes the same bytes.

use super::Report;
use super::table::{Cells, Table};
use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use std::sync::Arc;

/// Who wrote it.
const WRITER: &str = concat!("scalefabric-sim ", env!("CARGO_PKG_VERSION"));

/// The bytes of a file.
pub(super) fn write(report: &Report, table: &Table) -> Result<Vec<u8>, String> {
    encode(report, table).map_err(|error| format!("{}.parquet: {error}", table.name))
}

fn schema(table: &Table) -> Result<Type, ParquetError> {
    let field = |column: &super::table::Column| {
        let (physical, repetition) = match &column.cells {
            Cells::Whole(_) => (Physical::INT64, Repetition::REQUIRED),
            Cells::Number(..) => (Physical::DOUBLE, Repetition::REQUIRED),
            Cells::Maybe(..) => (Physical::DOUBLE, Repetition::OPTIONAL),
            Cells::Truth(_) => (Physical::BOOLEAN, Repetition::REQUIRED),
            Cells::Text(_) => (Physical::BYTE_ARRAY, Repetition::REQUIRED),
        };
        let (logical, converted) = match &column.cells {
            Cells::Whole(_) => (Some(LogicalType::integer(64, false)), ConvertedType::UINT_64),
            Cells::Text(_) => (Some(LogicalType::String), ConvertedType::UTF8),
            _ => (None, ConvertedType::NONE),
        };
        Type::primitive_type_builder(column.name, physical)
            .with_repetition(repetition)
            .with_logical_type(logical)
            .with_converted_type(converted)
            .build()
            .map(Arc::new)
    };
    let fields = table.columns.iter().map(field).collect::<Result<Vec<_>, _>>()?;
    Type::group_type_builder(table.name).with_fields(fields).build()
}

fn metadata(report: &Report, table: &Table) -> Vec<KeyValue> {
    let units: serde_json::Map<String, serde_json::Value> =
        table.columns.iter().map(|column| (column.name.to_owned(), column.unit.into())).collect();
    let point: serde_json::Map<String, serde_json::Value> =
        report.point.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect();
    let pair = |key: &str, value: String| KeyValue::new(key.to_owned(), Some(value));
    vec![
        pair("units", serde_json::Value::Object(units).to_string()),
        pair("scenario", report.scenario.clone()),
        pair("point", serde_json::Value::Object(point).to_string()),
        pair("algorithm", report.algorithm.clone()),
        pair("seed", report.seed.to_string()),
        pair("fingerprint", report.fingerprint.to_string()),
    ]
}

fn encode(report: &Report, table: &Table) -> Result<Vec<u8>, ParquetError> {
    let properties = WriterProperties::builder()
        .set_created_by(WRITER.to_owned())
        .set_key_value_metadata(Some(metadata(report, table)))
        .build();
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema(table)?), Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    for column in &table.columns {
        let Some(mut out) = group.next_column()? else { break };
        match &column.cells {
            Cells::Whole(cells) => {
                // The type says that the sign bit is a digit.
                let cells: Vec<i64> = cells.iter().map(|cell| cell.cast_signed()).collect();
                out.typed::<Int64Type>().write_batch(&cells, None, None)?;
            }
            Cells::Number(cells, _) => {
                out.typed::<DoubleType>().write_batch(cells, None, None)?;
            }
            Cells::Maybe(cells, _) => {
                let there: Vec<i16> = cells.iter().map(|cell| i16::from(cell.is_some())).collect();
                let cells: Vec<f64> = cells.iter().flatten().copied().collect();
                out.typed::<DoubleType>().write_batch(&cells, Some(&there), None)?;
            }
            Cells::Truth(cells) => {
                out.typed::<BoolType>().write_batch(cells, None, None)?;
            }
            Cells::Text(cells) => {
                let cells: Vec<ByteArray> = cells.iter().map(|cell| cell.as_str().into()).collect();
                out.typed::<ByteArrayType>().write_batch(&cells, None, None)?;
            }
        }
        out.close()?;
    }
    group.close()?;
    writer.into_inner()
}

#[cfg(test)]
mod tests {
    use super::super::super::{runner, scenario};
    use super::super::table::Column;
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    use std::path::Path;

    fn report() -> Report {
        let text = "seed = 3\n[topology]\nkind = \"star\"\nhosts = 5\n[congestion]\nalgorithm = \"hpcc\"\n\
            [[workload]]\nkind = \"incast\"\nbytes = \"100KB\"\n[output]\nsample = \"1us\"\n";
        let read = scenario::parse(text, "t.toml", "small", Path::new(""), &[]).unwrap();
        runner::run(&read[0], &mut |_| true).unwrap()
    }

    fn read(bytes: &[u8], name: &str) -> SerializedFileReader<std::fs::File> {
        let path = std::env::temp_dir().join(format!("scalefabric-{}-{name}.parquet", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        SerializedFileReader::new(file).unwrap()
    }

    /// A cell as CSV has it.
    fn cell(field: &Field, column: &Column) -> String {
        match (field, &column.cells) {
            (Field::ULong(whole), Cells::Whole(_)) => whole.to_string(),
            (Field::Double(number), Cells::Number(_, digits) | Cells::Maybe(_, digits)) => {
                format!("{number:.*}", *digits)
            }
            (Field::Null, Cells::Maybe(..)) => String::new(),
            (Field::Bool(truth), Cells::Truth(_)) => truth.to_string(),
            (Field::Str(text), Cells::Text(_)) => text.clone(),
            (other, _) => panic!("{} is {other:?}", column.name),
        }
    }

    #[test]
    fn what_is_read_back_is_what_csv_says_with_types_and_units() {
        let report = report();
        let tables = report.tables();
        assert_eq!(tables.iter().map(|table| table.name).collect::<Vec<_>>(), ["samples", "pauses", "flows"]);
        for table in &tables {
            let bytes = write(&report, table).unwrap();
            assert_eq!(bytes, write(&report, table).unwrap(), "the same run writes the same bytes");
            let reader = read(&bytes, table.name);
            let metadata = reader.metadata().file_metadata();
            assert_eq!(metadata.num_rows() as usize, table.rows());
            let told = |key: &str| -> String {
                let all = metadata.key_value_metadata().unwrap();
                all.iter().find(|pair| pair.key == key).and_then(|pair| pair.value.clone()).unwrap()
            };
            let units: serde_json::Value = serde_json::from_str(&told("units")).unwrap();
            for column in &table.columns {
                assert_eq!(units[column.name], column.unit, "{}", column.name);
            }
            assert_eq!((told("seed").as_str(), told("algorithm").as_str()), ("3", "hpcc"));
            assert_eq!(told("fingerprint"), report.fingerprint.to_string());
            let csv = table.csv();
            let mut lines = csv.lines().skip(1);
            for row in reader.get_row_iter(None).unwrap() {
                let row = row.unwrap();
                let cells: Vec<String> =
                    row.get_column_iter().zip(&table.columns).map(|((_, field), column)| cell(field, column)).collect();
                assert_eq!(Some(cells.join(",").as_str()), lines.next());
            }
            assert_eq!(lines.next(), None);
        }
        assert!(tables[0].rows() > 5 && tables[2].rows() == 4, "{} and {}", tables[0].rows(), tables[2].rows());
    }

    #[test]
    fn texts_truths_and_missing_cells_come_back() {
        let report = report();
        let column = |name, cells| Column { name, unit: "1", cells };
        let table = Table {
            name: "all",
            columns: vec![
                column("whole", Cells::Whole(vec![0, u64::MAX, 7])),
                column("maybe", Cells::Maybe(vec![None, Some(0.5), None], 2)),
                column("truth", Cells::Truth(vec![true, false, true])),
                column("text", Cells::Text(vec!["host 0 -> leaf 0".into(), String::new(), "µ".into()])),
            ],
        };
        let reader = read(&write(&report, &table).unwrap(), "all");
        let rows: Vec<String> = reader
            .get_row_iter(None)
            .unwrap()
            .map(|row| {
                let row = row.unwrap();
                let cells = row.get_column_iter().zip(&table.columns).map(|((_, field), column)| cell(field, column));
                cells.collect::<Vec<_>>().join(",")
            })
            .collect();
        assert_eq!(rows, ["0,,true,host 0 -> leaf 0", "18446744073709551615,0.50,false,", "7,,true,µ"]);
    }
}
