------------------------------ MODULE Recovery ------------------------------
(***************************************************************************)
(* The fast path of weir kv and its recovery by a new leader.              *)
(*                                                                         *)
(* A strong operation goes to the leader and, as a record, to all other    *)
(* replicas (its witnesses) at once.  It is done after one round trip when *)
(* the leader has told a result ("spec") and enough witnesses have voted   *)
(* in the same view; or later, when the leader has committed it.  A new    *)
(* leader finds operations of the first kind, which may be in no log but   *)
(* the old leader's, in the pools of F+1 replicas.                         *)
(*                                                                         *)
(* Underneath is Raft: terms, logs, elections, append, commit.  A view is  *)
(* the term of a leader that has opened.  Messages are facts that stay     *)
(* (led, spec, votes): they arrive late, twice, in any order or never,     *)
(* because taking one is always possible and never necessary.              *)
(*                                                                         *)
(* Broken names rules that are switched off, to see what each is for.      *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
  Replicas,   \* 2F+1 of them
  First,      \* that which leads when everything begins
  Ops,        \* the strong operations
  Clash,      \* sets {x, y} of operations that do not commute
  Before,     \* an operation, and
  After,      \* the one that its session sends next, without waiting; NoOp if each has a session of its own
  NoOp,       \* the first entry of a new leader
  Nobody,     \* no replica
  MaxView,    \* leaders of terms 1..MaxView: MaxView-1 changes of leader
  Broken      \* rules that are switched off, {} in the protocol

VARIABLES
  term,       \* replica -> Raft's term
  log,        \* replica -> sequence of entries
  commit,     \* replica -> how much of its log it knows to be committed, and has applied
  view,       \* replica -> the view that it votes in
  pool,       \* replica -> operation -> view of the record that it holds, 0: none
  led,        \* term -> its leader, how far it is, the pools that it has collected
  spec,       \* [op, view, val]: results that leaders told before the commit
  votes,      \* [op, view, by]: votes of witnesses
  done        \* operation -> [view, val] with which its client finished

vars == <<term, log, commit, view, pool, led, spec, votes, done>>

On(rule) == rule \notin Broken

F          == (Cardinality(Replicas) - 1) \div 2
Half       == (F + 1) \div 2                                         \* F/2, rounded up
FastQuorum == F + Half + (IF On("quorum") THEN 1 ELSE 0)             \* the leader among them
Collect    == IF On("collect") THEN F + 1 ELSE F                     \* pools that a new leader takes
RecoverAt  == IF On("threshold") THEN Half + 1 ELSE Half             \* of which so many must hold an operation

Quorums == {q \in SUBSET Replicas : Cardinality(q) = F + 1}
Views   == 1..MaxView
None    == [view |-> 0, val |-> <<>>]

Max(a, b) == IF a > b THEN a ELSE b

-----------------------------------------------------------------------------
(* Logs. *)

Entry(t, x)     == [term |-> t, op |-> x]
Has(l, x)       == \E i \in DOMAIN l : l[i].op = x
LastTerm(l)     == IF l = <<>> THEN 0 ELSE l[Len(l)].term
UpToDate(a, b)  == \/ LastTerm(a) > LastTerm(b)
                   \/ LastTerm(a) = LastTerm(b) /\ Len(a) >= Len(b)
Prefix(l, n)    == SubSeq(l, 1, n)

\* How many entries two logs have in common, which are their first ones: in
\* Raft, logs with an equal entry at one place are equal before it, too.
Common(a, b) == Cardinality({i \in DOMAIN a \cap DOMAIN b : a[i] = b[i]})

Clashes(x, y) == {x, y} \in Clash

\* The result of x: all that does not commute with it and comes before it.
\* Two equal results mean the same answer, whatever the operations are.
Result(l, x) ==
  LET at == IF Has(l, x) THEN CHOOSE i \in DOMAIN l : l[i].op = x ELSE Len(l) + 1
      own(e) == Clashes(e.op, x)
      before == SelectSeq(Prefix(l, at - 1), own)
  IN  [i \in DOMAIN before |-> before[i].op]

\* The operation before x in its session, NoOp if x is the first.
Prior(x) == IF x = After THEN Before ELSE NoOp

-----------------------------------------------------------------------------
(* Clients. *)

\* What a client may know, it knows at once: it is done as soon as answers that
\* suffice are under way, whichever it takes. What else comes for the
\* operation is of no interest any more.
Told(d, results, ayes) ==
  /\ done'  = d
  /\ spec'  = {s \in results : d[s.op] = None}
  /\ votes' = {w \in ayes : d[w.op] = None}

\* The leader's results and the votes of witnesses reach the clients.
Tell(results, ayes) ==
  LET enough(s) == Cardinality({w \in ayes : w.op = s.op /\ w.view = s.view /\ w.by # led[s.view].by}) + 1 >= FastQuorum
      d == [x \in Ops |->
              IF done[x] = None /\ \E s \in results : s.op = x /\ enough(s)
              THEN LET s == CHOOSE s \in results : s.op = x /\ enough(s) IN [view |-> s.view, val |-> s.val]
              ELSE done[x]]
  IN  Told(d, results, ayes)

-----------------------------------------------------------------------------
(* Raft. *)

Leader(t)     == led[t].by
InOffice(t)   == Leader(t) # Nobody /\ term[Leader(t)] = t
Applied(r, x) == Has(Prefix(log[r], commit[r]), x)

\* All that is known to be committed.
Chosen == LET r == CHOOSE r \in Replicas : \A p \in Replicas : commit[p] <= commit[r] IN Prefix(log[r], commit[r])

NoLeader == [by |-> Nobody, stage |-> "none", pools |-> {}]

Init ==
  /\ term   = [r \in Replicas |-> 1]
  /\ log    = [r \in Replicas |-> <<>>]
  /\ commit = [r \in Replicas |-> 0]
  /\ view   = [r \in Replicas |-> 1]
  /\ pool   = [r \in Replicas |-> [x \in Ops |-> 0]]
  /\ led    = [t \in Views |-> IF t = 1 THEN [NoLeader EXCEPT !.by = First, !.stage = "open"] ELSE NoLeader]
  /\ spec   = {}
  /\ votes  = {}
  /\ done   = [x \in Ops |-> None]

\* The pools after r has applied l: records of what is applied leave its pool.
Freed(r, l) == [pool EXCEPT ![r] = [x \in Ops |-> IF Has(l, x) THEN 0 ELSE @[x]]]

\* The leader r of t commits the first n entries of l, and answers.
Commits(t, r, n, l) ==
  /\ commit' = [commit EXCEPT ![r] = n]
  /\ pool' = Freed(r, Prefix(l, n))
  /\ Told([x \in Ops |-> IF done[x] = None /\ Has(Prefix(l, n), x) THEN [view |-> t, val |-> Result(l, x)] ELSE done[x]],
          spec, votes)

\* The quorum q elects r, whose log is as good as any of theirs, and takes its
\* log with the first entry of the new term: that and all before is committed.
\* Leaders that do not come so far change no view, and are left out.
Elect(r, q) ==
  \E t \in Views :
    /\ \A u \in Views : led[u].by # Nobody <=> u < t
    /\ r \in q
    /\ \A p \in q : UpToDate(log[r], log[p])
    /\ LET l == Append(log[r], Entry(t, NoOp)) IN
         /\ term' = [p \in Replicas |-> IF p \in q THEN t ELSE term[p]]
         /\ log'  = [p \in Replicas |-> IF p \in q THEN l ELSE log[p]]
         /\ led'  = [u \in Views |-> CASE u = t -> [NoLeader EXCEPT !.by = r, !.stage = "new"]
                                   [] led[u].by \in q -> [led[u] EXCEPT !.pools = {}]
                                   [] OTHER -> led[u]]
         /\ Commits(t, r, Len(l), l)
    /\ UNCHANGED view

\* r takes over the log of the leader of t, and what that knows to be committed.
Replicate(t, r) ==
  /\ InOffice(t) /\ r # Leader(t)
  /\ term[r] <= t
  /\ LET l == log[Leader(t)]
         n == commit[Leader(t)]
     IN  /\ log[r] # l \/ commit[r] < n
         /\ term' = [term EXCEPT ![r] = t]
         /\ log'  = [log EXCEPT ![r] = l]
         /\ commit' = [commit EXCEPT ![r] = n]
         /\ pool' = Freed(r, Prefix(l, IF On("gc") THEN n ELSE Len(l)))
  /\ UNCHANGED <<view, led, spec, votes, done>>

\* The leader of t commits an entry of its own term that F+1 replicas have, and
\* all before it.
Commit(t) ==
  /\ InOffice(t)
  /\ LET r == Leader(t)
         has(p, n) == term[p] = t /\ n <= Len(log[p]) /\ log[p][n] = log[r][n]
         ready == {n \in commit[r]+1..Len(log[r]) :
                     log[r][n].term = t /\ Cardinality({p \in Replicas : has(p, n)}) >= F + 1}
         n == CHOOSE n \in ready : \A m \in ready : m <= n
     IN  /\ ready # {}
         /\ Commits(t, r, n, log[r])
  /\ UNCHANGED <<term, log, view, led>>

-----------------------------------------------------------------------------
(* The fast path. *)

IsOpen(t) == led[t].stage = "open" \/ (~On("open") /\ led[t].stage # "none")

\* The replica's own pool allows x: nothing in it clashes, and the session's
\* operation before x is there too.
Pooled(r, x) ==
  /\ \A y \in Ops : pool[r][y] # 0 => ~Clashes(x, y)
  /\ On("prior") /\ Prior(x) # NoOp => pool[r][Prior(x)] # 0 \/ Applied(r, Prior(x))

\* So does what it has in its log and does not know to be committed.
Logged(r, x) == \A i \in commit[r]+1..Len(log[r]) : ~Clashes(x, log[r][i].op)

\* The leader of t takes x: at the end of its log, after the session's earlier
\* ones; and it may tell the result if nothing uncommitted clashes. It stops
\* when it has given its pool to a later leader, even if it knows no later term.
Strong(t, x) ==
  /\ InOffice(t) /\ IsOpen(t)
  /\ LET r == Leader(t)
         l == Append(log[r], Entry(t, x))
         val == IF On("overlay") THEN Result(log[r], x) ELSE Result(Prefix(log[r], commit[r]), x)
     IN  /\ view[r] = t \/ ~On("leader")
         /\ ~Has(log[r], x)
         /\ Prior(x) = NoOp \/ Has(log[r], Prior(x))
         /\ log' = [log EXCEPT ![r] = l]
         /\ \/ /\ (Pooled(r, x) /\ Logged(r, x)) \/ ~On("overlay")
               /\ pool' = [pool EXCEPT ![r][x] = t]
               /\ Tell(spec \cup {[op |-> x, view |-> t, val |-> val]}, votes)
            \/ UNCHANGED <<pool, spec, votes, done>>
  /\ UNCHANGED <<term, commit, view, led>>

\* A witness gets the record of x, which was sent in view v, and votes for it.
\* It may be the leader of v, if it has left office; such a vote does not count.
Record(v, r, x) ==
  /\ IsOpen(v) /\ ~(r = Leader(v) /\ InOffice(v))
  /\ view[r] = v \/ ~On("view")
  /\ Applied(r, x) \/ (Pooled(r, x) /\ (Logged(r, x) \/ ~On("log")))
  /\ pool' = IF Applied(r, x) THEN pool ELSE [pool EXCEPT ![r][x] = Max(@, v)]
  /\ Tell(spec, votes \cup {[op |-> x, view |-> v, by |-> r]})
  /\ <<pool', votes', done'>> # <<pool, votes, done>>
  /\ UNCHANGED <<term, log, commit, view, led>>

-----------------------------------------------------------------------------
(* A new leader. *)

\* r moves to the view of t and sends its pool, the leader itself first.
Answer(t, r) ==
  /\ InOffice(t) /\ led[t].stage = "new"
  /\ Cardinality(led[t].pools) < Collect
  /\ view[r] <= t
  /\ \A p \in led[t].pools : p.by # r
  /\ r = Leader(t) \/ \E p \in led[t].pools : p.by = Leader(t)
  /\ view' = [view EXCEPT ![r] = t]
  /\ led'  = [led EXCEPT ![t].pools = @ \cup {[by |-> r, ops |-> {x \in Ops : pool[r][x] # 0}]}]
  /\ UNCHANGED <<term, log, commit, pool, spec, votes, done>>

\* r moves to the view of t, but its answer comes too late or never.
Move(t, r) ==
  /\ led[t].stage # "none" /\ view[r] < t
  /\ view' = [view EXCEPT ![r] = t]
  /\ UNCHANGED <<term, log, commit, pool, led, spec, votes, done>>

\* What the pools say must be appended.
Recovered(t) ==
  {x \in Ops : /\ Cardinality({p \in led[t].pools : x \in p.ops}) >= RecoverAt
               /\ ~Has(log[Leader(t)], x)}

\* The orders in which they may be appended: any that keeps each session's.
Orders(ops) ==
  {o \in [1..Cardinality(ops) -> ops] :
     \A i, j \in DOMAIN o : i # j => o[i] # o[j] /\ (o[i] = Prior(o[j]) => i < j)}

Recover(t) ==
  /\ InOffice(t) /\ led[t].stage = "new"
  /\ Cardinality(led[t].pools) = Collect
  /\ \E o \in Orders(Recovered(t)) :
       LET r == Leader(t)
           l == log[r] \o [i \in DOMAIN o |-> Entry(t, o[i])]
       IN  /\ log' = [log EXCEPT ![r] = l]
           /\ led' = [led EXCEPT ![t].stage = "recovered"]
  /\ UNCHANGED <<term, commit, view, pool, spec, votes, done>>

\* Records of earlier views are of no use once a leader has opened.
Forget(r, t) == pool' = [pool EXCEPT ![r] = [x \in Ops |-> IF @[x] < t THEN 0 ELSE @[x]]]

Open(t) ==
  /\ InOffice(t) /\ led[t].stage = "recovered"
  /\ LET r == Leader(t) IN commit[r] = Len(log[r]) /\ Forget(r, t)
  /\ led' = [led EXCEPT ![t].stage = "open", ![t].pools = {}]
  /\ UNCHANGED <<term, log, commit, view, spec, votes, done>>

NewView(r, t) ==
  /\ led[t].stage = "open" /\ view[r] <= t
  /\ view' = [view EXCEPT ![r] = t]
  /\ Forget(r, t)
  /\ <<view', pool'>> # <<view, pool>>
  /\ UNCHANGED <<term, log, commit, led, spec, votes, done>>

\* A replica that told before its disk knew forgets its pool when it restarts.
Amnesia(r) ==
  /\ ~On("sync")
  /\ pool' = [pool EXCEPT ![r] = [x \in Ops |-> 0]]
  /\ pool' # pool
  /\ UNCHANGED <<term, log, commit, view, led, spec, votes, done>>

Next ==
  \/ \E r \in Replicas : Amnesia(r) \/ \E q \in Quorums : Elect(r, q)
  \/ \E t \in Views :
       \/ Commit(t) \/ Recover(t) \/ Open(t)
       \/ \E r \in Replicas : Replicate(t, r) \/ Answer(t, r) \/ Move(t, r) \/ NewView(r, t)
       \/ \E x \in Ops : Strong(t, x) \/ \E r \in Replicas : Record(t, r, x)

Spec == Init /\ [][Next]_vars

\* Replicas but the first are alike, and so are two operations that clash with
\* nothing but each other.
Symmetry == Permutations(Replicas \ {First}) \cup (IF After = NoOp THEN Permutations(UNION Clash) ELSE {})

\* States that differ in nothing that matters any more are one to TLC: a result
\* or a vote without a chance to become part of a fast quorum, the progress of a
\* leader out of office.
Hopeful(x, v) ==
  LET l == Leader(v)
      told == \E s \in spec : s.op = x /\ s.view = v
      may(r) == view[r] <= v \/ \E w \in votes : w.by = r /\ w.op = x /\ w.view = v
  IN  /\ told \/ (InOffice(v) /\ view[l] <= v /\ ~Has(log[l], x))
      /\ Cardinality({r \in Replicas : r = l \/ may(r)}) >= FastQuorum

WhatMatters ==
  IF ~On("view") \/ ~On("leader") THEN vars ELSE    \* then views are no obstacle
  << term, log, commit, view, pool, done,
     {s \in spec : Hopeful(s.op, s.view)},
     {w \in votes : Hopeful(w.op, w.view)},
     [t \in Views |-> IF led[t].by = Nobody \/ InOffice(t) \/ led[t].stage = "open" THEN led[t] ELSE Nobody] >>

-----------------------------------------------------------------------------
(* What must hold. *)

\* A finished operation is in the log of every leader that is open in its view
\* or a later one, and there it still has the result that its client was told:
\* whatever does not commute with it stands on the same side of it for ever.
DoneIsKept ==
  \A t \in Views : InOffice(t) /\ led[t].stage = "open" =>
    \A x \in Ops : done[x] # None /\ t >= done[x].view =>
      Has(log[Leader(t)], x) /\ Result(log[Leader(t)], x) = done[x].val

\* Nor does what is committed contradict a result.
ResultsStand ==
  \A x \in Ops : done[x] # None /\ Has(Chosen, x) => Result(Chosen, x) = done[x].val

\* Two operations that do not commute are never both taken from pools.
RecoveredCommute ==
  \A t \in Views : InOffice(t) /\ Cardinality(led[t].pools) = Collect =>
    \A x, y \in Recovered(t) : ~Clashes(x, y)

\* No log has a gap in a session, and nothing twice.
LogsAreSound ==
  \A r \in Replicas : \A i \in DOMAIN log[r] :
    LET x == log[r][i].op
        before == Prefix(log[r], i - 1)
    IN  x # NoOp => ~Has(before, x) /\ (Prior(x) # NoOp => Has(before, Prior(x)))

\* S1: a pool holds operations that commute.
PoolsCommute == \A r \in Replicas : \A x, y \in Ops : pool[r][x] # 0 /\ pool[r][y] # 0 => ~Clashes(x, y)

\* S5: no replica holds a record of a view that it has not reached, and a new
\* leader opens only when F+1 replicas vote in its view or a later one.
ViewsHold ==
  /\ \A r \in Replicas : \A x \in Ops : pool[r][x] <= view[r]
  /\ \A t \in Views : led[t].stage \in {"recovered", "open"} => Cardinality({r \in Replicas : view[r] >= t}) >= F + 1

\* S6: no result is told ahead of the commit before an entry of the leader's term is committed.
SpecAfterCommit == \A s \in spec : s.view = 1 \/ \E i \in DOMAIN Chosen : Chosen[i].term >= s.view

\* S12: a leader that could serve a read, because F+1 replicas still follow no
\* later one, has every finished operation in its log.
ReadsAreCurrent ==
  \A t \in Views : InOffice(t) /\ IsOpen(t) /\ Cardinality({r \in Replicas : term[r] <= t}) >= F + 1 =>
    \A x \in Ops : done[x] # None => Has(log[Leader(t)], x)

\* Raft's own: what replicas apply is one sequence.
LogsAgree == \A r \in Replicas : Prefix(log[r], commit[r]) = Prefix(Chosen, commit[r])

\* As steps: views and terms only rise, votes are cast in the voter's own view
\* (S5), and what is committed stays.
Monotone ==
  [][ /\ \A r \in Replicas : view'[r] >= view[r] /\ term'[r] >= term[r]
      /\ \A w \in votes' \ votes : view[w.by] = w.view
      /\ \A r \in Replicas : commit'[r] >= commit[r] /\ Prefix(log'[r], commit[r]) = Prefix(log[r], commit[r]) ]_vars
=============================================================================
