package sqlscan

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// varyingNames are the functions that leave a session as it is, and so may run in any,
// but whose result is another with each call, or that do something by themselves: an
// answer with them is for its own client, at its own time. now() is none: it belongs to
// the transaction. The list is of those that are volatile in harmlessNames and in
// extensions, and of those that look at the connection.
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

// Varies reports whether a text calls, by name, a function whose result is another with
// each call, or takes a sample of a table. It errs towards more.
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

// Body is the text without white space and comments at its ends: all of it where it is
// too long to be cut.
func (t *Text) Body() string {
	if n := len(t.tokens); t.cut && n > 0 {
		return t.sql[t.tokens[0].start:t.tokens[n-1].end]
	}
	return t.sql
}

// ReadBy is EffLiterals for a setting by which the input of types, or the parser, goes: in
// a session with another value, a literal may mean something else. It is EffPath for the
// one by which names are found, and nothing for all others.
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

// Literals reports whether a text has literals in quotes, whose values the server takes
// when it parses the text, and whether any may mean a time: 'now', 'tomorrow 10:00'. It errs
// towards more.
func (t *Text) Literals() (some, moment bool) {
	lex := t.lexer()
	for tok := lex.next(); tok.kind != tokEOF; tok = lex.next() {
		if tok.kind == tokString {
			some, moment = true, moment || meansTime(lex.sql[tok.start:tok.end])
		}
	}
	return some, moment
}

// meansTime reports whether a literal has a word that the input of dates and times takes
// for the present, or for something beside it.
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
