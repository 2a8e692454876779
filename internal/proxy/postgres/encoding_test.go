package postgres_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// unreadEncodings are those with characters that end in a backslash, and one of
// these each. UHC and JOHAB have characters that end in letters.
var unreadEncodings = []struct{ name, backslash string }{
	{"SJIS", "\x95\x5c"},
	{"SHIFT_JIS_2004", "\x95\x5c"},
	{"GBK", "\x95\x5c"},
	{"GB18030", "\x95\x5c"},
	{"BIG5", "\xa5\x5c"},
}

// However a session gets its encoding, a text in which weir and the
// server see literals end elsewhere reaches no other client.
func TestTextsInEncodingsThatAreNotReadReachNobodyElse(t *testing.T) {
	t.Parallel()
	for _, enc := range unreadEncodings {
		t.Run(enc.name, func(t *testing.T) {
			t.Parallel()
			db := database(t, "CREATE FUNCTION turn() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('client_encoding', '"+enc.name+"', false); END $$")
			// Read byte by byte, this is a literal and a comment.
			hiding := 0
			hidden := func() string { // another text each time, that weir does not know
				hiding++
				return fmt.Sprintf("SELECT E'%s', set_config('app.planted', 'here', false), '%d' --'", enc.backslash, hiding)
			}
			check := func(how string, others []*wire) {
				t.Helper()
				for _, other := range others {
					other.send(query("BEGIN"))
					other.ready()
				}
				for _, other := range others {
					if got := other.ask("SELECT current_setting('app.planted', true) AS v"); got != "[v] (null) SELECT_1 T" && got != "[v] () SELECT_1 T" {
						t.Errorf("%s: another client sees %s", how, got)
					}
					other.send(query("ROLLBACK"))
					other.ready()
				}
			}
			w := start(t, db, func(c *postgres.Config) { c.PoolSize = 3 })
			others := []*wire{w.wire(), w.wire()} // for the backends that are left: one is pinned
			for i, way := range []struct {
				name   string
				params []pgwire.Param
				first  []byte // before the text
			}{
				{"startup packet", []pgwire.Param{{Name: "client_encoding", Value: enc.name}}, nil},
				{"options", []pgwire.Param{{Name: "options", Value: "-c client_encoding=" + enc.name}}, nil},
				{"SET", nil, query("SET client_encoding TO '" + enc.name + "'")},
				{"SET NAMES", nil, query("SET NAMES '" + enc.name + "'")},
				{"set_config", nil, query("SELECT set_config('client_encoding', '" + enc.name + "', false)")},
				{"a function", nil, query("SELECT turn()")},
				{"UPDATE pg_settings", nil, query("UPDATE pg_settings SET setting = '" + enc.name + "' WHERE name = 'client_encoding'")},
				{"DO", nil, query("DO $$ BEGIN SET client_encoding TO '" + enc.name + "'; END $$")},
				{"SET in a transaction", nil, slices.Concat(query("BEGIN"), query("SET LOCAL client_encoding TO '"+enc.name+"'"))},
			} {
				if i > testkit.Rounds(0, 2) && enc.name != "SJIS" {
					break // the same in all of them
				}
				for _, form := range []struct {
					name string
					text func(sql string) []byte
				}{
					{"simple", func(sql string) []byte { return query(sql) }},
					{"extended", func(sql string) []byte { return run(sql) }},
					{"prepared", func(sql string) []byte {
						return slices.Concat(parse("s", sql), sync(), bind("", "s"), execute("", 0), sync())
					}},
				} {
					for _, pipelined := range []bool{false, true} {
						how := fmt.Sprintf("%s, %s, pipelined %v", way.name, form.name, pipelined)
						text, pins := form.text(hidden()), w.pool().Pins["encoding"]
						c := w.wire(way.params...)
						n := 1
						if form.name == "prepared" {
							n = 2
						}
						await := func(n int) {
							for range n {
								if e := errorIn(c.ready()); e != nil {
									t.Fatalf("%s: %v", how, e)
								}
							}
						}
						before := 0
						if way.first != nil {
							before = 1 + bytes.Count(way.first, []byte("BEGIN\x00"))
						}
						for range 3 { // a text that is known to be cheap would share a backend
							c.ask("SELECT E'x'")
						}
						if pipelined {
							c.send(way.first, text)
							await(before + n)
						} else {
							c.send(way.first)
							await(before)
							c.send(text)
							await(n)
						}
						if w.pool().Pins["encoding"] == pins {
							t.Errorf("%s: not pinned: %v", how, w.pool().Pins)
						}
						check(how, others)
						c.close()
						check(how+", after it has left", others)
					}
				}
			}
		})
	}
}

// A pipeline without a Sync in between gets no answer between its messages.
func TestAnEncodingThatChangesWithinAPipeline(t *testing.T) {
	t.Parallel()
	db := database(t)
	for _, how := range []string{"SET client_encoding TO 'SJIS'", "SELECT set_config('client_encoding', 'SJIS', false)"} {
		w := start(t, db, nil)
		c := w.wire()
		hidden := "SELECT E'\x95\x5c', set_config('app.planted', 'here', false), '' --'"
		step := func(sql string) []byte { return slices.Concat(parse("", sql), bind("", ""), execute("", 0)) }
		c.send(step(how), step(hidden), step("RESET client_encoding"), sync())
		if e := errorIn(c.ready()); e != nil {
			t.Fatal(e)
		}
		c.close()
		other := w.wire()
		for range 20 {
			if got := other.ask("SELECT current_setting('app.planted', true) AS v"); got != "[v] (null) SELECT_1 I" {
				t.Errorf("%s: another client sees %s", how, got)
			}
		}
	}
}

// Sessions in such encodings share backends as long as their texts are ASCII.
func TestASCIITextsNeedNoPinInAnyEncoding(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (v text)"), nil)
	c := w.wire(pgwire.Param{Name: "client_encoding", Value: "SJIS"})
	for range 3 {
		c.want("SELECT 1 AS n", "[n] (1) SELECT_1 I")
		c.send(run("INSERT INTO t VALUES ($1) RETURNING v", "\x95\x5c\x82\xa0"))
		if got := render(c.ready()); got != "parsed bound [v] (\x95\x5c\x82\xa0) INSERT_0_1 I" {
			t.Errorf("a parameter: %q", got)
		}
	}
	if pins := w.pool().Pins["encoding"]; pins != 0 {
		t.Errorf("pinned %d times by ASCII", pins)
	}
	w.wire().want("SELECT DISTINCT v FROM t", "[v] (表あ) SELECT_1 I")
}

// In the encodings that weir reads, no ASCII byte is part of a longer character:
// the server, asked to convert a character and an ASCII byte, gives the byte back.
func TestBytewiseEncodingsAreThat(t *testing.T) {
	t.Parallel()
	conn := connect(t, server(t).DSN(database(t, `
		CREATE FUNCTION swallows(enc text) RETURNS bool LANGUAGE plpgsql AS $$
		DECLARE a int; b int; got bytea; src bytea;
		BEGIN
			FOR a IN 128..255 LOOP FOREACH b IN ARRAY ARRAY[92, 39, 34, 36, 59, 45, 47, 42, 10, 65, 97, 48, 124, 126, 64] LOOP
				src := decode(lpad(to_hex(a), 2, '0') || lpad(to_hex(b), 2, '0'), 'hex');
				BEGIN
					got := convert(src, enc, 'UTF8');
					IF get_byte(got, length(got) - 1) <> b OR length(got) < 2 OR get_byte(got, 0) < 128 THEN RETURN true; END IF;
				EXCEPTION WHEN others THEN END;
			END LOOP; END LOOP;
			RETURN false;
		END $$`)))
	ctx := ctxFor(t)
	rows, err := conn.Query(ctx, "SELECT pg_encoding_to_char(n) AS enc, CASE WHEN pg_encoding_to_char(n) NOT IN ('SQL_ASCII', 'UTF8', 'MULE_INTERNAL', 'EUC_TW') THEN swallows(pg_encoding_to_char(n)) END FROM generate_series(0, 60) n WHERE pg_encoding_to_char(n) <> ''")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	unread := []string{"JOHAB", "UHC"}
	for _, e := range unreadEncodings {
		unread = append(unread, e.name)
	}
	seen := 0
	for rows.Next() {
		var enc string
		var swallows *bool
		if err := rows.Scan(&enc, &swallows); err != nil {
			t.Fatal(err)
		}
		if swallows == nil {
			continue
		}
		seen++
		if want := slices.Contains(unread, enc); *swallows != want && enc != "JOHAB" { // of which the server takes a part only
			t.Errorf("%s swallows ASCII bytes: %v, want %v", enc, *swallows, want)
		}
	}
	if err := rows.Err(); err != nil || seen < 30 {
		t.Errorf("%d encodings: %v", seen, err)
	}
}

// Texts of random bytes are answered as directly, and leave nothing behind.
func TestRandomTextsInEncodingsThatAreNotRead(t *testing.T) {
	t.Parallel()
	pieces := []string{
		"'", "\\", "E'", "'", "\"", "$$", "$a$", "--", "\n", "/*", "*/", ";", " ", "x", ", ", "''", "\\'",
		"; SET app.planted TO 'here'", "set_config('app.planted', 'here', false)", "SELECT ", "\x95", "\xa5", "\x81", "\x8b", "\x88", "\x5c", "\x40",
	}
	for i, enc := range unreadEncodings {
		t.Run(enc.name, func(t *testing.T) {
			t.Parallel()
			db := database(t)
			w := start(t, db, nil)
			r := rand.New(rand.NewPCG(uint64(i), 1))
			param := pgwire.Param{Name: "client_encoding", Value: enc.name}
			other, direct := w.wire(), dialWire(t, server(t).Addr(), db, param)
			for range testkit.Rounds(10, 150) {
				sql := "SELECT E'"
				for range 1 + r.IntN(12) {
					if r.IntN(4) == 0 {
						sql += enc.backslash
					} else {
						sql += pieces[r.IntN(len(pieces))]
					}
				}
				message := query(sql)
				if r.IntN(2) == 0 {
					message = run(sql)
				}
				through := w.wire(param)
				direct.asNew()
				direct.send(message)
				through.send(message)
				if d, g := render(direct.ready()), render(through.ready()); d != g {
					t.Errorf("%q\ndirect  %s\nthrough %s", sql, d, g)
				}
				through.close()
				if got := other.ask("SELECT current_setting('app.planted', true) AS v"); strings.Contains(got, "here") {
					t.Fatalf("%q: another client sees %s", sql, got)
				}
			}
		})
	}
}

// TestQueuedReadsOfAnotherEncoding: reads that wait for a backend while the database's
// default becomes an encoding in which weir would misread their texts are refused, and weir
// goes on.
func TestQueuedReadsOfAnotherEncoding(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE r (id int PRIMARY KEY, v text); INSERT INTO r VALUES (1, 'x')")
	w := start(t, db, func(c *postgres.Config) { c.PoolSize = 1 })
	ctx := ctxFor(t)
	reader := connect(t, w.dsn("postgres"))
	read := func() (v string, err error) {
		err = reader.QueryRow(ctx, "SELECT v FROM r WHERE id = 1", pgx.QueryExecModeSimpleProtocol).Scan(&v)
		return v, err
	}
	eventually(t, "the read is shared", func() bool {
		if _, err := read(); err != nil {
			t.Fatal(err)
		}
		return w.shape("select v from r where id = ?").Shared > 0
	})
	holder := connect(t, w.dsn("postgres"))
	if _, err := holder.Exec(ctx, "BEGIN"); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := read()
		result <- err
	}()
	eventually(t, "the read waits", func() bool { return w.pool().Waiting > 0 })
	direct := connect(t, fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", server(t).Addr()))
	for _, sql := range []string{
		"ALTER DATABASE " + db + " SET client_encoding = 'SJIS'",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '" + db + "'",
	} {
		if _, err := direct.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-result:
		if state := sqlState(err); state != "08006" {
			t.Errorf("the read that waited: %v", err)
		}
	case <-ctx.Done():
		t.Fatal("the read that waited has no answer")
	}
	if _, err := connect(t, w.dsn("postgres")).Exec(ctx, "SELECT 1"); err != nil {
		t.Errorf("then: %v", err)
	}
}
