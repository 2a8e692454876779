package postgres

import "github.com/weirdb/weir/internal/wire/pgwire"

// maxPrepared bounds the statements prepared on one backend; the server keeps
// a plan for each.
const maxPrepared = 1000

// maxPreparedBytes bounds their texts.
const maxPreparedBytes = 4 << 20

// backendStmts are the statements that are prepared on a backend.
//
// After a message that fails, the server skips the rest of the unit, including a Parse or Close
// of weir's own, while weir may already have sent further units. Therefore weir closes
// statements, to make room, only at the start of a unit, where a Close is never skipped.
// And it sends nothing that relies on a Parse which an earlier unit may still skip: a client
// that owns the backend waits for the answer to that unit; for others the statement is
// closed and parsed once more, which is right whether or not the server has it.
type backendStmts struct {
	b        *backend
	prepared map[*stmt]preparedStmt
	bytes    int // of their texts
	useSeq   uint64

	begun    uint64 // units that may have Parse messages, numbered from 1
	answered uint64 // up to this number
	parsing  uint64 // the last one with a Parse that may be skipped
	front    uint64 // where in the output that unit begins, after the Closes that make room

	// foreign statements were parsed with settings that are not theirs, see literals.go; true: they
	// have literals, so that not even the client that parsed them may use them later.
	foreign map[*stmt]bool

	heard stmtDescription // of the statement that the server is describing
}

// A preparedStmt is what is known of a statement on a backend.
type preparedStmt struct {
	lastUsed  uint64 // by useSeq
	sentBy    uint64 // the unit that has its last Parse
	parsedBy  uint64 // the unit that has its Parse; 0 if that cannot be skipped
	reparsed  bool   // there was a Parse in another unit, too
	uncertain bool   // it may be there or not: to be closed before it is parsed
	params    bool   // its parameters are those that clients were told
	columns   bool   // its columns are, too
}

// begin starts a unit that has been pushed: the place to make room.
func (k *backendStmts) begin(u *unit) {
	k.begun++
	u.num, u.lastNum, u.unlearned = k.begun, k.begun, 0
	most := k.most()
	for len(k.prepared) > most || k.bytes > maxPreparedBytes {
		k.evict(u)
	}
	k.front = k.position()
}

// ended notes that a unit has been answered.
func (k *backendStmts) ended(u *unit) {
	if u.lastNum > 0 {
		k.answered = u.lastNum
	}
	k.heard = stmtDescription{} // the server may have failed between the parameters and the columns
}

// position is how much has been sent, in bytes.
func (k *backendStmts) position() uint64 { return k.b.s.Written + uint64(k.b.s.Pending()) }

func (k *backendStmts) most() int {
	if n := k.b.p.l.cfg.MaxPrepared; n > 0 {
		return n
	}
	return maxPrepared
}

// has reports whether a statement is prepared here, or its Parse was sent.
func (k *backendStmts) has(st *stmt) bool {
	was, ok := k.prepared[st]
	return ok && !was.uncertain
}

// knows reports whether u, the last unit begun, can rely on a statement, and records the use.
func (k *backendStmts) knows(u *unit, st *stmt) bool {
	was, ok := k.prepared[st]
	if !ok || was.uncertain || was.parsedBy > k.answered && was.parsedBy != k.begun {
		return false
	}
	if st.desc.params != nil && !was.params && !parsesItself(u, st) {
		return false
	}
	k.useSeq++
	was.lastUsed = k.useSeq
	k.prepared[st] = was
	return true
}

// pending reports whether the client that owns the backend must wait before it uses a
// statement: an earlier unit of its own, not answered yet, has the Parse.
func (k *backendStmts) pending(c *client, st *stmt) bool {
	if k.parsing <= k.answered || st == nil || c.state == stateCopying {
		return false
	}
	earlier := k.b.Depth()
	if c.cur != nil {
		earlier--
	}
	was := k.prepared[st]
	return earlier > 0 && !was.uncertain && was.parsedBy > k.answered && (c.cur == nil || was.parsedBy < c.cur.num)
}

// learn records that a Parse of st is about to be sent, and makes room for it.
func (k *backendStmts) learn(u *unit, st *stmt) {
	b := k.b
	counted(b.p, &b.p.Stats.ServerParses)
	front := k.position() == k.front
	was, there := k.prepared[st]
	if !there {
		most := k.most()
		for front && len(k.prepared) > 0 && (len(k.prepared) >= most || k.bytes+len(st.tail) > maxPreparedBytes) {
			k.evict(u)
		}
		k.bytes += len(st.tail)
	} else {
		k.close(u, st)
	}
	k.useSeq++
	now := preparedStmt{lastUsed: k.useSeq, sentBy: u.num, parsedBy: u.num, reparsed: there}
	switch {
	case b.owner == nil && front:
		now.parsedBy = 0 // no failure and no aborted transaction precedes it
	case there && !was.uncertain && (was.params || st.desc.params == nil):
		now.parsedBy = was.parsedBy // if this one is skipped, the earlier one still counts
	}
	k.prepared[st] = now
	k.parsing = max(k.parsing, now.parsedBy)
	if c := b.owner; c != nil && !st.single && (c.stmts.readsAstray(st) || c.responder.changes) {
		if k.foreign == nil {
			k.foreign = make(map[*stmt]bool)
		}
		k.foreign[st] = c.responder.changes || c.stmts.readsLiteralsAstray(st)
	}
}

// sure records that the last Parse learned will not be skipped.
func (k *backendStmts) sure(st *stmt) {
	was := k.prepared[st]
	was.parsedBy = 0
	k.prepared[st] = was
}

// unlearn handles the Parse messages of a failed unit: the server refused
// the one at which it failed, and skipped those after it.
func (k *backendStmts) unlearn(u *unit) {
	at := min(u.expAt, len(u.exp))
	for i := max(at, u.unlearned); i < len(u.exp); i++ {
		x := u.exp[i]
		if x.st == nil || x.code != expParse && x.code != expHiddenParse {
			continue
		}
		was, there := k.prepared[x.st]
		switch {
		case !there, was.parsedBy > u.num, i > at && was.parsedBy < u.num: // skipped, and there from before or parsed by a later unit
		case was.reparsed:
			was.uncertain = true
			k.prepared[x.st] = was
		default:
			k.drop(x.st)
		}
	}
	u.unlearned = len(u.exp)
}

// drop removes a statement.
func (k *backendStmts) drop(st *stmt) {
	delete(k.prepared, st)
	delete(k.foreign, st)
	k.bytes -= len(st.tail)
}

// forget is called after a command that ends all statements, as DISCARD ALL does.
func (k *backendStmts) forget() {
	clear(k.prepared)
	k.bytes, k.foreign = 0, nil
}

// evict closes the least recently used of a few statements. The unit must have sent
// nothing yet but a Close.
func (k *backendStmts) evict(u *unit) {
	var victim *stmt
	oldest, seen := ^uint64(0), 0
	for st, was := range k.prepared {
		if was.lastUsed < oldest {
			victim, oldest = st, was.lastUsed
		}
		if seen++; seen == 16 {
			break
		}
	}
	k.drop(victim)
	k.close(u, victim)
}

// close closes a statement on the server.
func (k *backendStmts) close(u *unit, st *stmt) {
	k.b.s.Out = pgwire.AppendClose(k.b.s.OutBuf(), pgwire.KindStatement, st.srvName)
	u.exp = append(u.exp, expect{code: expHiddenClose})
}

// putParse sends the client's Parse of st, unless the statement is here and the server would
// only confirm it.
func (k *backendStmts) putParse(u *unit, st *stmt) {
	if k.knows(u, st) && !st.noticed && !u.anew && !st.desc.old(k.b.p.l.Now) {
		u.exp = append(u.exp, expect{code: expOwnParse})
		return
	}
	k.learn(u, st)
	k.ownParse(u, st)
}

// ownParse appends the client's Parse of a statement whose description is known.
func (k *backendStmts) ownParse(u *unit, st *stmt) {
	k.b.s.Out = pgwire.AppendParseRaw(k.b.s.OutBuf(), st.srvName, st.tail)
	u.exp = append(u.exp, expect{code: expParse, st: st})
	if st.desc.known() || u.flight == nil && st.infers() {
		st.desc.asked = k.b.p.l.Now
		k.describe(u, st.srvName, expect{st: st, own: true})
	}
}

// parseAnew sends the client's Parse of st if the server may refuse it, even if the
// statement is here: it is closed first, which the server never refuses.
func (k *backendStmts) parseAnew(u *unit, st *stmt) {
	k.learn(u, st)
	was := k.prepared[st]
	was.parsedBy = u.num // what follows cannot rely on the statement, even if it was here
	k.prepared[st], k.parsing = was, u.num
	k.ownParse(u, st)
}

// need makes sure that st is prepared, by a Parse of weir's own.
func (k *backendStmts) need(u *unit, st *stmt) {
	if k.knows(u, st) {
		return
	}
	k.learn(u, st)
	u.exp = append(u.exp, expect{code: expHiddenParse, st: st})
	k.putTyped(u, st)
}
