package sqlscan

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// varyingNames are functions that leave the session unchanged, and so may run in any, but
// return something else at each call, or have an effect of their own: an answer with them
// must not be given to another client or at another time. now() is not one: it depends on
// the transaction. The list has the volatile functions in harmlessNames, some of
// extensions, and those that read properties of the connection.
var varyingNames = func() map[string]struct{} {
	m := make(map[string]struct{})
	for name := range strings.FieldsSeq(`
		array_sample array_shuffle clock_timestamp current_query gen_random_bytes gen_random_uuid gen_salt inet_client_addr inet_client_port
		inet_server_addr inet_server_port pg_advisory_xact_lock pg_advisory_xact_lock_shared pg_backend_pid
		pg_blocking_pids pg_current_xact_id pg_current_xact_id_if_assigned pg_notification_queue_usage pg_notify
		pg_try_advisory_xact_lock pg_try_advisory_xact_lock_shared pgp_pub_encrypt pgp_pub_encrypt_bytea pgp_sym_encrypt
		pgp_sym_encrypt_bytea random random_normal timeofday txid_current
		txid_current_if_assigned uuid_generate_v1 uuid_generate_v1mc uuid_generate_v4 uuid_generate_v7 uuidv4 uuidv7`) {
		m[name] = struct{}{}
	}
	return m
}()

// Varies reports whether a text calls, by name, a function that returns something else at
// each call, or takes a sample of a table. In doubt it reports true.
func (t *Text) Varies() bool {
	var r Reading
	var buf [maxName]byte
	lex := t.lexer()
	called := false
	for {
		tok := lex.next()
		switch tok.kind {
		case tokEOF:
			return r.Unreadable || lex.broken
		case '(':
			if called {
				return true
			}
		case tokWord, tokQuoted:
			if tok.kw == kwTablesample {
				return true
			}
			n := r.name(lex.sql, tok, &buf)
			_, called = varyingNames[string(buf[:n])]
			continue
		}
		called = false
	}
}

// Body returns the text without white space and comments at its ends, or all of it if it
// is longer than maxCut.
func (t *Text) Body() string {
	if n := len(t.tokens); t.cut && n > 0 {
		return t.sql[t.tokens[0].start:t.tokens[n-1].end]
	}
	return t.sql
}

// ReadBy returns EffLiterals for a setting that the parser or the input functions of types
// use, so that a literal may mean something else with another value; EffPath for
// search_path; and nothing for all others.
func ReadBy(setting string) Effect {
	switch setting {
	case "timezone", "datestyle", "intervalstyle", "timezone_abbreviations", "lc_monetary", "array_nulls", "xmloption",
		"default_text_search_config", "transform_null_equals", "standard_conforming_strings", "backslash_quote", "client_encoding":
		return EffLiterals
	case "search_path":
		return EffPath
	}
	return 0
}

// Literals reports whether a text has literals in quotes, which the server evaluates when
// it parses the text, and whether any may depend on the time: 'now', 'tomorrow 10:00'. In
// doubt it reports true.
func (t *Text) Literals() (some, moment bool) {
	lex := t.lexer()
	for tok := lex.next(); tok.kind != tokEOF; tok = lex.next() {
		if tok.kind == tokString {
			some, moment = true, moment || meansTime(lex.sql[tok.start:tok.end])
		}
	}
	return some, moment
}

// meansTime reports whether a literal has a word that the input functions of dates and
// times read relative to the current time.
func meansTime(literal string) bool {
	for i := 0; i < len(literal); i++ {
		from := i
		for i < len(literal) && 'a' <= literal[i]|0x20 && literal[i]|0x20 <= 'z' {
			i++
		}
		switch word := literal[from:i]; len(word) {
		case len("now"), len("today"), len("tomorrow"), len("yesterday"):
			for _, w := range [...]string{"now", "today", "tomorrow", "yesterday"} {
				if lexicon.EqualFold(word, w) {
					return true
				}
			}
		}
	}
	return false
}
