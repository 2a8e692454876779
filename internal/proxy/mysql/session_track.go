package mysql

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file handles session tracking: the server reports changes of the session's state in the
// OK of the statement that made them. That is right whatever the text was: a SET with an
// expression, a procedure, a function in a SELECT.

// unreplayed are variables whose value belongs to one connection, or changes by itself: a
// session that sets one keeps its backend. A pin of 0 means that weir handles the variable
// otherwise.
var unreplayed = map[string]pin{
	"timestamp":                      pinTimestamp,
	"insert_id":                      pinSet,
	"identity":                       0, // another name of last_insert_id
	"last_insert_id":                 0, // see diagnostics.go
	"statement_id":                   0, // MySQL counts statements, and reports each number
	"rand_seed1":                     pinSet,
	"rand_seed2":                     pinSet,
	"pseudo_thread_id":               pinSet,
	"pseudo_slave_mode":              pinSet,
	"pseudo_replica_mode":            pinSet,
	"gtid_next":                      pinSet,
	"gtid_seq_no":                    pinSet,
	"gtid_domain_id":                 pinSet,
	"server_id":                      pinSet,
	"skip_replication":               pinSet,
	"sql_log_bin":                    pinSet,
	"debug":                          pinSet,
	"debug_dbug":                     pinSet,
	"debug_sync":                     pinSet,
	"resource_group":                 pinSet,
	"session_track_system_variables": pinTrack,
	"session_track_schema":           pinTrack,
	"session_track_state_change":     pinTrack,
	"session_track_gtids":            pinTrack,
	"session_track_transaction_info": pinTrack,
}

// track applies the session state that the server reports in the answer to u.
func (b *backend) track(u *unit, state []byte) {
	c := u.c
	b.noteGTID(u, state)
	if u.kind == unitHidden {
		u.noteReported(state)
		if c := b.owner; u.probe && c != nil {
			c.settings.owed = append(c.settings.owed, state...)
			b.trackFor(c, u, state)
			return
		}
	}
	if u.kind != unitClient || c == nil || b.owner != c {
		if u.kind == unitClient && b.changes(state) {
			b.Doomed = true // a shared read or a grouped write has changed the session
		}
		return
	}
	if u.cmd == mywire.ComResetConnection {
		return // see resetSession: the state after a reset is known
	}
	b.trackFor(c, u, state)
}

// trackFor applies the changes of the owner's session that the answer to u reports.
func (b *backend) trackFor(c *client, u *unit, state []byte) {
	p := b.p
	set := c.set
	for len(state) > 0 {
		ch, rest, err := mywire.ParseChange(state)
		if err != nil {
			b.fail(err)
			return
		}
		state = rest
		switch ch.Kind {
		case mywire.TrackSystemVariables:
			if u.effects.Has(myscan.EffStatementSet) && !u.effects.Has(myscan.EffSet|myscan.EffUnknownFunc) {
				continue // set for this statement only, and reported in between
			}
			if p.facts.isFixedBytes(ch.Name) {
				continue // each write gets its GTID reported
			}
			set = c.settings.trackVariable(set, string(ch.Name), string(ch.Value))
		case mywire.TrackSchema:
			set = c.settings.trackDatabase(set, string(ch.Value))
		case mywire.TrackStateChange:
			u.change |= changeState
		}
	}
	if u.change&changeNames != 0 {
		// Servers do not report the collation that comes with a character set.
		set = p.settings.Without(set, "collation_connection")
		if u.collation != "" {
			set = p.settings.With(set, session.Setting{Name: "collation_connection", Value: u.collation, Literal: true})
		}
	}
	c.settings.adopt(b, set)
}

// changes reports whether session state says that the session has changed, also if it cannot be
// parsed. A transaction shows in the status instead. A query of information_schema makes the
// server report the current database.
func (b *backend) changes(state []byte) bool {
	db := b.p.key.database
	if s, ok := b.set.Get(databaseSetting); ok {
		db = s.Value
	}
	for len(state) > 0 {
		ch, rest, err := mywire.ParseChange(state)
		switch {
		case err != nil:
			return true
		case ch.Kind == mywire.TrackSystemVariables && (string(ch.Name) == "statement_id" || b.p.facts.isFixed(string(ch.Name))):
		case ch.Kind == mywire.TrackSchema && string(ch.Value) == db:
		case ch.Kind == mywire.TrackSystemVariables, ch.Kind == mywire.TrackSchema, ch.Kind == mywire.TrackStateChange:
			return true
		}
		state = rest
	}
	return false
}

// onlyCounts reports whether state only has the statement's number, which MySQL reports with
// each answer, and u's client does not track that.
func onlyCounts(u *unit, state []byte) bool {
	if u.c != nil && u.c.settings.isReported([]byte("statement_id")) {
		return false
	}
	ch, rest, err := mywire.ParseChange(state)
	return err == nil && len(rest) == 0 && ch.Kind == mywire.TrackSystemVariables && string(ch.Name) == "statement_id"
}

// adopt sets the settings of the client and of its backend.
func (sg *settings) adopt(b *backend, set *session.Set) {
	if set == sg.c.set {
		return
	}
	sg.c.set, b.set = set, set
	sg.readMode()
}

func (sg *settings) trackVariable(set *session.Set, name, value string) *session.Set {
	c := sg.c
	name = c.p.facts.oneName(strings.ToLower(name))
	if c.p.facts.isFixed(name) {
		return set
	}
	if cause, own := unreplayed[name]; own {
		if name == "last_insert_id" || name == "identity" {
			c.diag.last.setID(uint64OrZero(value))
			return set
		}
		if name == trackList && c.link != nil && c.link.shows {
			return set // weir queries the list itself
		}
		sg.choseVariables = sg.choseVariables || name == trackList
		sg.choseChanges = sg.choseChanges || name == "session_track_state_change"
		c.pins.add(cause)
		if name == "session_track_schema" {
			c.link.Doomed = true // it may be left with any current database
		}
		return set
	}
	if name == "sql_auto_is_null" && (value == "ON" || value == "1") {
		c.pins.add(pinSet) // a comparison with NULL then reads LAST_INSERT_ID()
	}
	if name == "profiling" && value != "OFF" && value != "0" || name == "optimizer_trace" && strings.Contains(value, "enabled=on") {
		c.pins.add(pinSet)   // the server keeps texts and times of its statements, to show them,
		c.link.Doomed = true // and no reset clears them
	}
	if strings.HasPrefix(name, "wsrep_") || strings.HasPrefix(name, "pseudo_") {
		c.pins.add(pinSet)
		return set
	}
	if base, ok := c.p.facts.base[name]; ok && base == value && !isCharset(name) {
		return c.p.settings.Without(set, name)
	}
	return c.p.settings.With(set, session.Setting{Name: name, Value: value, Literal: true})
}

// traces reports whether a text makes the server keep a trace of its own statement. A prepared
// one counts from its preparation on.
func traces(sql string, info *myscan.Statement) bool {
	return info.Effects.Has(myscan.EffStatementSet) && strings.Contains(strings.ToLower(sql), "optimizer_trace")
}

func (sg *settings) trackDatabase(set *session.Set, name string) *session.Set {
	c := sg.c
	if name == "" {
		// The current database was dropped. No other connection has that state, except one that
		// never had a database.
		c.pins.add(pinDatabase)
		return set
	}
	c.pins.held &^= pinDatabase
	if name == c.p.key.database {
		return c.p.settings.Without(set, databaseSetting)
	}
	return c.p.settings.With(set, session.Setting{Name: databaseSetting, Value: name, Literal: true})
}

func uint64OrZero(s string) uint64 { return parseUint([]byte(s)) }

// stateFor returns the part of session state that a client without weir would get reported. A
// member of a group gets no report of the group's transaction.
func (sg *settings) stateFor(state []byte, grouped bool) []byte {
	if !sg.c.caps.Has(mywire.CapSessionTrack) {
		return nil
	}
	var out []byte
	for len(state) > 0 {
		ch, rest, err := mywire.ParseChange(state)
		if err != nil {
			return nil // track has reported the error
		}
		told := !grouped // changes that weir's settings do not affect are passed on
		change := state[:len(state)-len(rest)]
		switch ch.Kind {
		case mywire.TrackSchema:
			told = true
		case mywire.TrackSystemVariables:
			if told = sg.isReported(ch.Name); told {
				break
			}
			if other := sg.c.p.facts.otherName(string(ch.Name)); other != "" && sg.isReported([]byte(other)) {
				// weir's list has all variables, and the server reports this one by the name
				// that was set.
				told, change = true, mywire.AppendChange(nil, mywire.Change{Kind: ch.Kind, Name: []byte(other), Value: ch.Value})
			}
		case mywire.TrackStateChange:
			told = sg.choseChanges
		}
		if told {
			out = append(out, change...)
		}
		state = rest
	}
	return out
}
