//go:build ignore

// Command gen writes keywords_table.go and functions_table.go from the
// catalogue of a live PostgreSQL server:
//
//	go run gen.go -dsn 'host=/tmp port=5432 user=postgres'
//
// A function of pg_catalog is taken for harmless if every overload is declared
// immutable or stable, or if it is volatile and named in harmlessVolatile; in
// either case only if notHarmless does not name it.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"go/format"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// harmlessVolatile are volatile functions that touch nothing beyond their own
// statement: they read clocks, entropy, statistics, sizes or the log's position.
// pg_notify is the function form of NOTIFY; the transaction-level advisory
// locks end with the transaction. Neither is for a read that may run twice, which
// package postgres sees to (aloneBuiltins).
const harmlessVolatile = `
clock_timestamp current_query gen_random_uuid pg_advisory_xact_lock
pg_advisory_xact_lock_shared pg_blocking_pids pg_collation_actual_version
pg_current_wal_flush_lsn pg_current_wal_insert_lsn pg_current_wal_lsn
pg_database_collation_actual_version pg_database_size pg_indexes_size
pg_is_in_recovery pg_is_wal_replay_paused pg_last_committed_xact
pg_last_wal_receive_lsn pg_last_wal_replay_lsn pg_last_xact_replay_timestamp
pg_notification_queue_usage pg_notify pg_partition_ancestors pg_partition_tree
pg_relation_size pg_safe_snapshot_blocking_pids pg_table_size
pg_tablespace_size pg_total_relation_size pg_try_advisory_xact_lock
pg_try_advisory_xact_lock_shared pg_xact_commit_timestamp pg_xact_status random
timeofday txid_status`

// notHarmless are functions that the catalogue calls stable although they run
// SQL that the text does not show, or read files of the server.
const notHarmless = `
cursor_to_xml cursor_to_xmlschema database_to_xml
database_to_xml_and_xmlschema database_to_xmlschema query_to_xml
query_to_xml_and_xmlschema query_to_xmlschema schema_to_xml
schema_to_xml_and_xmlschema schema_to_xmlschema table_to_xml
table_to_xml_and_xmlschema table_to_xmlschema ts_rewrite ts_stat
pg_stat_get_wal_receiver pg_config`

// byHand are harmless names that the query does not find: sampling methods
// (they take an internal argument), and built-ins of PostgreSQL 16 to 18.
const byHand = `
bernoulli system any_value array_reverse array_sample array_shuffle array_sort
casefold crc32 crc32c date_add date_subtract erf erfc gamma lgamma
json_array_elements pg_basetype pg_input_error_info pg_input_is_valid
random_normal to_bin to_oct unicode_assigned unicode_version icu_unicode_version
uuid_extract_timestamp uuid_extract_version uuidv4 uuidv7 xmltext reverse`

// newerKeywords cannot be function names in PostgreSQL 16 to 18 and take
// parentheses.
const newerKeywords = `
json json_array json_arrayagg json_exists json_object json_objectagg json_query
json_scalar json_serialize json_table json_value merge_action`

const functionsQuery = `
select proname from pg_proc
where pronamespace = 'pg_catalog'::regnamespace
group by proname
having bool_and((provolatile <> 'v' or proname = any($1)) and prokind in ('f', 'a', 'w')
	and prorettype <> all(array['trigger', 'event_trigger', 'internal', 'language_handler', 'fdw_handler',
		'table_am_handler', 'index_am_handler', 'tsm_handler']::regtype[])
	and 'internal'::regtype <> all(proargtypes::oid[]))
order by proname collate "C"`

func main() {
	log.SetFlags(0)
	dsn := flag.String("dsn", "", "connection string of the server to read")
	flag.Parse()
	if err := run(context.Background(), *dsn); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	var version string
	if err := conn.QueryRow(ctx, "select current_setting('server_version_num')::int / 10000").Scan(&version); err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	if err := writeFunctions(ctx, conn, version); err != nil {
		return fmt.Errorf("write functions: %w", err)
	}
	if err := writeKeywords(ctx, conn, version); err != nil {
		return fmt.Errorf("write keywords: %w", err)
	}
	return nil
}

func writeFunctions(ctx context.Context, conn *pgx.Conn, version string) error {
	rows, err := conn.Query(ctx, functionsQuery, strings.Fields(harmlessVolatile))
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	denied := strings.Fields(notHarmless)
	names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(denied, n) })
	names = append(names, strings.Fields(byHand)...)
	slices.Sort(names)
	names = slices.Compact(names)
	var b bytes.Buffer
	header(&b, version)
	fmt.Fprintf(&b, "// harmlessNames are the functions of pg_catalog that do nothing to a session.\n")
	fmt.Fprintf(&b, "const harmlessNames = `%s`\n", wrap(names))
	return save("functions_table.go", b.Bytes())
}

func writeKeywords(ctx context.Context, conn *pgx.Conn, version string) error {
	// The order of the classes is that of the constants' boundaries.
	rows, err := conn.Query(ctx, `select word, catcode::text from pg_get_keywords() order by word collate "C"`)
	if err != nil {
		return err
	}
	classes := map[string][]string{"C": strings.Fields(newerKeywords)}
	var word, class string
	if _, err := pgx.ForEachRow(rows, []any{&word, &class}, func() error {
		classes[class] = append(classes[class], word)
		return nil
	}); err != nil {
		return err
	}
	var b bytes.Buffer
	header(&b, version)
	asked, err := askedFor()
	if err != nil {
		return err
	}
	var all []string
	b.WriteString("// The keywords that the scanner asks for. Reserved ones come first, then those that\n" +
		"// cannot be function names, then the others.\nconst (\n\tnotKeyword keyword = 0\n")
	lastNoFunction := 0
	for _, c := range []string{"R", "C", "T", "U"} {
		slices.Sort(classes[c])
		for _, w := range classes[c] {
			all = append(all, w)
			if name := "kw" + camel(w); asked[name] {
				fmt.Fprintf(&b, "\t%s keyword = %d\n", name, len(all))
			}
			if c == "C" {
				lastNoFunction = len(all)
			}
		}
	}
	fmt.Fprintf(&b, ")\n\nconst lastNoFunction keyword = %d\n\n", lastNoFunction)
	fmt.Fprintf(&b, "// keywordNames are all keywords; the one with number k is at k-1.\nconst keywordNames = `%s`\n", wrap(all))
	return save("keywords_table.go", b.Bytes())
}

// askedFor are the names of keywords in the sources of the package.
func askedFor() (map[string]bool, error) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		return nil, err
	}
	asked := make(map[string]bool)
	name := regexp.MustCompile(`\bkw[A-Z]\w*`)
	for _, file := range files {
		if file == "keywords_table.go" {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, word := range name.FindAllString(string(source), -1) {
			asked[word] = true
		}
	}
	return asked, nil
}

func header(b *bytes.Buffer, version string) {
	fmt.Fprintf(b, "// Code generated by gen.go from the catalogue of PostgreSQL %s; DO NOT EDIT.\n\npackage sqlscan\n\n", version)
}

func camel(word string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(word, "_") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}

// wrap sets words in lines of at most 100 bytes.
func wrap(words []string) string {
	var b strings.Builder
	width := 100
	for _, w := range words {
		if width+len(w) >= 100 {
			b.WriteByte('\n')
			width = 0
		} else {
			b.WriteByte(' ')
			width++
		}
		b.WriteString(w)
		width += len(w)
	}
	return b.String() + "\n"
}

func save(name string, source []byte) error {
	formatted, err := format.Source(source)
	if err != nil {
		return fmt.Errorf("format %s: %w", name, err)
	}
	return os.WriteFile(name, formatted, 0o644)
}
