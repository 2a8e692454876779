package postgres

import "github.com/weirdb/weir/internal/proxy/sqlscan"

// This file finds the statements that affect a whole database or role: see renew.go.

// A changeScope is the databases and roles that a statement affects as a whole. An empty
// database or user stands for any.
type changeScope struct {
	database, user string
	// alone: the server refuses the statement while other sessions are
	// connected to the database.
	alone bool
	// copies: the database is the template of a new one.
	copies bool
	// current: the user is the statement's current_user.
	current bool
}

// maxReachWords is how many words of one statement weir reads: those that affect more than
// their session are short.
const maxReachWords = 64

// reachOf finds out what the statements of a text affect. When in doubt it returns more: the
// worst result of a wrong answer is that some idle backends are renewed.
func reachOf(sql string) []changeScope {
	var out []changeScope
	t := sqlscan.WordsOf(sql)
	for !t.Done() {
		var stmt []sqlscan.Word
		for w, ok := t.Next(); ok; w, ok = t.Next() {
			if len(stmt) < maxReachWords {
				stmt = append(stmt, w)
			}
		}
		out = append(out, reachOfOne(stmt)...)
	}
	return out
}

func reachOfOne(stmt []sqlscan.Word) []changeScope {
	if len(stmt) < 3 {
		return nil
	}
	name := stmt[2:]
	if name[0].Is("if") { // IF EXISTS
		name = name[min(2, len(name)):]
	}
	if len(name) == 0 {
		return nil
	}
	switch verb, kind := stmt[0], stmt[1]; {
	case kind.Is("database"):
		db := name[0].Text
		switch {
		case verb.Is("drop"), verb.Is("alter") && (has(name, "rename") || has(name, "tablespace")):
			return []changeScope{{database: db, alone: true}}
		case verb.Is("alter") && (has(name, "set") || has(name, "reset")):
			return []changeScope{{database: db}}
		case verb.Is("create"):
			return []changeScope{{database: templateOf(name), alone: true, copies: true}}
		}
	case kind.Is("role"), kind.Is("user"), kind.Is("group"):
		switch {
		case verb.Is("drop"):
			var out []changeScope
			for _, w := range name {
				if w.Text != "," {
					out = append(out, changeScope{user: w.Text})
				}
			}
			return out
		case verb.Is("alter") && (has(name, "set") || has(name, "reset") || has(name, "rename")):
			r := changeScope{user: name[0].Text}
			switch {
			case name[0].Is("all"):
				r.user = ""
			case name[0].Is("current_user"), name[0].Is("current_role"), name[0].Is("session_user"):
				r.user, r.current = "", true
			}
			for i, w := range name {
				if w.Is("database") && i > 0 && name[i-1].Is("in") && i+1 < len(name) {
					r.database = name[i+1].Text
				}
			}
			return []changeScope{r}
		}
	}
	return nil
}

// templateOf is the database that a CREATE DATABASE copies.
func templateOf(name []sqlscan.Word) string {
	for i, w := range name {
		if !w.Is("template") || i == 0 {
			continue
		}
		if i+1 < len(name) && name[i+1].Text == "=" {
			i++
		}
		if i+1 < len(name) && !name[i+1].Is("default") {
			return name[i+1].Text
		}
	}
	return "template1"
}

func has(list []sqlscan.Word, keyword string) bool {
	for _, w := range list[1:] {
		if w.Is(keyword) {
			return true
		}
	}
	return false
}
