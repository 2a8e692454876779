package postgres

import (
	"encoding/hex"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// timeoutName is the setting that ends statements, including a replay.
const timeoutName = "statement_timeout"

// roleName is the role of a startup message, which belongs to the pool: SET ROLE pins.
const roleName = "role"

// asLogin begins a text of several statements that sets what the login may set but not the
// role of the startup message, as the server does with a startup message.
func (k poolKey) asLogin() string {
	if k.role == "" {
		return ""
	}
	return "SET LOCAL " + roleName + " TO 'none'; "
}

const liftTimeout = "SET " + timeoutName + " TO 0"

// transition returns the SQL that changes a session from one set to another, except for
// statement_timeout, which comes last. A parameter that is only in from returns by RESET to the
// value that it had when the connection began.
func transition(from, to *session.Set) string {
	var b strings.Builder
	for _, old := range from.List() {
		if _, ok := to.Get(old.Name); !ok && old.Name != timeoutName {
			b.WriteString(reset(old.Name))
		}
	}
	for _, s := range to.List() {
		if have, ok := from.Get(s.Name); ok && have == s || s.Name == timeoutName {
			continue
		}
		if s.Encoding == "" { // else see replay
			b.WriteString(set(s))
		}
	}
	return b.String()
}

// timeout is the SQL that changes statement_timeout from one set to another; lifted: it is
// now 0, whatever from says.
func timeout(from, to *session.Set, lifted bool) string {
	have, had := from.Get(timeoutName)
	switch want, ok := to.Get(timeoutName); {
	case ok && (lifted || want != have):
		return set(want)
	case !ok && (lifted || had):
		return reset(timeoutName)
	}
	return ""
}

func reset(name string) string { return "RESET " + quoteGUC(name) + "; " }

// set is the SQL that applies one setting.
func set(s session.Setting) string {
	if s.Literal {
		return "SELECT pg_catalog.set_config(" + anyLiteral(s.Name) + ", " + anyLiteral(s.Value) + ", false); "
	}
	return "SET " + quoteGUC(s.Name) + " TO " + s.Value + "; "
}

// setIfReset is the SQL that applies one setting unless the session has a value of
// its own, left by a RESET that was undone.
func setIfReset(s session.Setting) string {
	without := own("EXISTS (SELECT FROM pg_catalog.pg_settings WHERE source <> 'session' AND pg_catalog.lower(name) = ") + anyLiteral(s.Name) + ")"
	if sqlscan.Custom(s.Name) { // which that view does not show
		without = "coalesce(pg_catalog.current_setting(" + anyLiteral(s.Name) + own(", true), '') = ''")
	}
	return "SELECT pg_catalog.set_config(" + anyLiteral(s.Name) + ", " + anyLiteral(s.Value) + ", false) WHERE " + without + "; "
}

// replay returns the queries that change a session from one set to another, in order.
// There is more than one only if a SET had non-ASCII bytes on its right side: the server reads
// those as it did then only in the encoding that was set then.
func replay(from, to *session.Set) []string {
	var asWritten []string
	rest := transition(from, to)
	for _, s := range to.List() {
		if have, ok := from.Get(s.Name); s.Encoding == "" || ok && have == s {
			continue
		}
		asWritten = append(asWritten, "SET client_encoding TO "+quoteLiteral(s.Encoding), "SET "+quoteGUC(s.Name)+" TO "+s.Value)
	}
	if asWritten == nil {
		return []string{rest}
	}
	back := "RESET client_encoding; "
	if enc, ok := to.Get(encodingName); ok {
		back = set(enc)
	}
	return append(asWritten, back+rest)
}

// anyLiteral renders s, in the encoding of the database, as an SQL expression that
// every encoding reads alike.
func anyLiteral(s string) string {
	if sqlscan.ASCII(s) {
		return quoteLiteral(s)
	}
	return "pg_catalog.convert_from(pg_catalog.decode('" + hex.EncodeToString([]byte(s)) + "', 'hex'), pg_catalog.getdatabaseencoding())"
}

// quoteLiteral renders s as an SQL string that reads the same whatever
// standard_conforming_strings is.
func quoteLiteral(s string) string {
	var b strings.Builder
	if strings.ContainsRune(s, '\\') {
		b.WriteByte('E')
	}
	b.WriteByte('\'')
	for i := 0; i < len(s); i++ {
		if s[i] == '\'' || s[i] == '\\' {
			b.WriteByte(s[i])
		}
		b.WriteByte(s[i])
	}
	b.WriteByte('\'')
	return b.String()
}

// quoteGUC quotes each part of a possibly dotted parameter name.
func quoteGUC(name string) string {
	parts := strings.Split(name, ".")
	for i, p := range parts {
		parts[i] = `"` + strings.ReplaceAll(p, `"`, `""`) + `"`
	}
	return strings.Join(parts, ".")
}

// settings are those of the session: what the client has set, what only the server knows,
// and what the client has not been told yet.
type settings struct {
	c *client

	owed []pgwire.Param // changed by the server, to be reported to the client
	// startApp is the application name of the startup message.
	startApp  string
	start     *session.Set // from its startup message: the values to which RESET returns
	unsure    []string     // settings to ask the server for, when quiet
	txSets    []sqlscan.SetClause
	late      byte // of a ReadyForQuery that waits until start is restored; 0: none
	txUnclear bool // a savepoint was rolled back: txSets may be partly undone
	// astray are the effects by which the session on its backend may have settings other than set:
	// those of a transaction, or unknown ones.
	astray sqlscan.Effect
}

// settle updates the settings after a unit was answered. weir believes the text if its
// outcome is clear: all of the unit was one transaction, or it is part of one, or it is the
// COMMIT or ROLLBACK of one. But a unit may also commit in its middle and fail after that, or
// set something after the end of a transaction: then weir asks the server.
func (sg *settings) settle(b *backend, u *unit, before byte) {
	status, one := sg.c.tx, u.statements <= 1
	switch {
	case before == pgwire.StatusIdle && status == pgwire.StatusIdle && !u.effects.Has(sqlscan.EffTx) && !u.failed:
		for _, s := range u.sets {
			sg.apply(b, s)
		}
	case before == pgwire.StatusIdle && status == pgwire.StatusIdle && one && !u.resets:
		sg.doubtCustom(u.sets) // it was undone
	case status != pgwire.StatusIdle && !u.ends:
		sg.txSets = append(sg.txSets, u.sets...)
	case before != pgwire.StatusIdle && one && !u.failed && !sg.txUnclear && (u.commits || u.undoes):
		for _, s := range sg.txSets {
			if u.commits {
				sg.apply(b, s)
			}
		}
		if !u.commits {
			sg.doubtCustom(sg.txSets)
		}
		sg.txSets = nil
	default:
		sg.doubtSets(b, sg.txSets)
		sg.doubtSets(b, u.sets)
		sg.txSets = nil
	}
	if status == pgwire.StatusIdle || u.ends {
		sg.txUnclear = false
	}
	sg.calm(b)
}

// apply applies a SET or RESET that took effect to the recorded settings of the client and of its
// backend. Their defaults may differ: the client's include what it asked for
// at startup.
func (sg *settings) apply(b *backend, s sqlscan.SetClause) {
	c := sg.c
	t := c.l.Settings
	switch {
	case s.All:
		for _, have := range c.set.List() {
			if sqlscan.Custom(have.Name) {
				sg.doubt(have.Name) // it is empty now, or has its library's default; it does not disappear
			}
		}
		c.set, b.set = sg.start, sg.start
		c.app, b.app = sg.startApp, b.appFor(sg.startApp)
	case resets(&s) && s.Name == "application_name":
		c.app, b.app = sg.startApp, b.appFor(sg.startApp)
	case resets(&s):
		if start, ok := sg.start.Get(s.Name); ok {
			c.set, b.set = t.With(c.set, start), t.With(b.set, start)
		} else if sqlscan.Custom(s.Name) {
			sg.doubt(s.Name)
		} else {
			c.set, b.set = t.Without(c.set, s.Name), t.Without(b.set, s.Name)
		}
	case s.Name == "application_name":
		// ParameterStatus reports the value.
	default:
		v := session.Setting{Name: s.Name, Value: s.Value}
		if told, ok := b.told(s.Name); ok && sqlscan.ASCII(told) {
			v.Value, v.Literal = told, true // the complete value, if SET gives only a part, as for datestyle
		} else if strings.ContainsAny(s.Value, `\&`) {
			sg.doubt(s.Name) // its meaning depends on standard_conforming_strings
			return
		} else if !sqlscan.ASCII(v.Name) || !sqlscan.ASCII(v.Value) {
			v.Encoding = b.params[encodingName]
		}
		c.set, b.set = t.With(c.set, v), t.With(b.set, v)
	}
}

// again are the settings of the startup message that a unit has reset. The backend's
// defaults are the pool's; the client's include what it asked for at startup.
func (sg *settings) again(u *unit) []session.Setting {
	t := sg.c.l.Settings
	again, app := t.Empty(), false
	for i := range u.sets {
		switch s := &u.sets[i]; {
		case s.All:
			again, app = sg.start, true
		case !resets(s) && s.Name == "application_name":
			app = false
		case !resets(s):
			again = t.Without(again, s.Name)
		case s.Name == "application_name":
			app = true
		default:
			if start, ok := sg.start.Get(s.Name); ok {
				again = t.With(again, start)
			}
		}
	}
	list := again.List()
	if app && sg.startApp != "" {
		list = append(slices.Clone(list), session.Setting{Name: "application_name", Value: sg.startApp, Literal: true})
	}
	return list
}

// restores is the SQL that sets them again. Servers before 17.1, 16.5, 15.9, 14.14, 13.17 and
// 12.21 forget the role of the startup message with DISCARD ALL.
func (sg *settings) restores(u *unit) string {
	var sql strings.Builder
	if sg.c.p.key.role != "" && u.effects.Has(sqlscan.EffDiscardAll) {
		sql.WriteString(reset(roleName))
	}
	again := sg.again(u)
	if len(again) > 0 && sg.c.tx == pgwire.StatusIdle {
		sql.WriteString(sg.c.p.key.asLogin())
	}
	for _, s := range again {
		if u.failed {
			sql.WriteString(setIfReset(s))
		} else {
			sql.WriteString(set(s))
		}
	}
	return sql.String()
}

// delays reports whether the ReadyForQuery that ends a unit must wait for the answer to
// restoreStart. A client writes its next text according to the settings that it was told: with
// the intermediate client_encoding or standard_conforming_strings the server would read a
// different text.
func (sg *settings) delays(b *backend, u *unit, status byte) bool {
	sg.late = 0
	if u.resets && status != pgwire.StatusFailed && b.Depth() == 1 && sg.restores(u) != "" {
		sg.late = status
	}
	return sg.late != 0
}

// restoreStart follows a unit that resets parameters. After it, in its transaction if
// there is one, weir sets those of the startup message again, and the client is told its
// settings.
func (sg *settings) restoreStart(b *backend, u *unit) {
	c := sg.c
	if !u.resets || c.tx == pgwire.StatusFailed {
		return
	}
	sql := sg.restores(u)
	if sql == "" {
		return
	}
	late := sg.late
	if late != 0 {
		c.fwd.barriers++
	}
	b.ask(sql, func(u *unit) {
		if u.err != nil {
			b.Doomed = true
			c.fatal(pgwire.NewFatal(pgwire.CodeConnectionFailure, "weir could not restore the settings of the startup message: %s", u.err.Message))
			return
		}
		if late != 0 && !c.s.Closed {
			c.fwd.barriers--
			c.s.Write(pgwire.AppendReadyForQuery(nil, late))
			c.resume()
		}
	}).tell = true
}

// reported handles a ParameterStatus in the answer to this client.
func (sg *settings) reported(name, value string) {
	if name == "application_name" {
		sg.c.app = value
	}
	sg.c.texts.told(name, value)
}

// clauses are the SET and RESET of a text.
func clauses(info *sqlscan.Statement) []sqlscan.SetClause {
	if info.Count > 1 {
		return info.Sets
	}
	return []sqlscan.SetClause{info.Set}
}

// resets reports whether a clause goes back to a session's own default.
func resets(s *sqlscan.SetClause) bool {
	return s.All || s.Reset || s.Default || strings.EqualFold(s.Value, "default")
}
