------------------------------- MODULE Hybrid -------------------------------
(***************************************************************************)
(* What sessions of weir kv see with the preset curp-ho: strong operations *)
(* at the leader with the fast path, weak writes acknowledged by the disk  *)
(* of one replica, weak reads at any replica.                              *)
(*                                                                         *)
(* There is one log.  A change of leader keeps what is committed and any   *)
(* part of the rest; operations finished by the fast path it appends again *)
(* if they are gone (Recovery.tla is about how it finds them).  Keys hold  *)
(* lists: a write appends itself, a result is the whole list.  So every    *)
(* result shows all writes that it follows, and their order.               *)
(*                                                                         *)
(* An operation begins as late as it can, when the leader orders it or a   *)
(* replica reads, and ends as early as it can: that asks the most of it.   *)
(*                                                                         *)
(* hist is what clients were told; the invariants at the end are about it. *)
(* Broken names rules that are switched off, to see what each is for.      *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
  Sessions, Keys,
  Replicas,   \* that serve weak operations; each has a disk
  Kinds,      \* what happens, of "weak write", "store", "strong write", "strong read", "weak read"
  MaxOps,     \* operations of a session
  MaxView,    \* leaders
  MaxFaults,  \* clients that die and disks that are lost
  NoOp,       \* the first entry of a new leader
  Broken      \* rules that are switched off, {} in the protocol

VARIABLES
  log,        \* of the current leader: [w |-> write, view |-> leader that appended it]
  commit,     \* how much of it is committed
  openAt,     \* indices at which the leaders so far opened; the last one is in office
  fast,       \* operations finished by the fast path and not committed, with their bundles: they are in pools
  applied,    \* replica -> how much of the log it has applied
  seen,       \* replica -> newest view that it was told to be open
  intents,    \* replica -> weak writes on its disk
  issued,     \* session -> operations so far
  pending,    \* session -> its strong write that waits for the commit, or Idle
  unstable,   \* session -> weak writes that it does not know to be committed
  token,      \* session -> [view, index] that it must not read behind
  down,       \* sessions whose client has died and replicas whose disk is lost
  past,       \* history: session -> writes that it made or saw, and what came before these
  cause,      \* history: write -> past of its session when it was made
  floor,      \* history: writes that finished strong operations made or saw
  acked,      \* history: [w, at]: weak writes acknowledged by a replica
  hist        \* history: finished reads and strong writes

leader   == <<log, commit, openAt, fast>>
replica  == <<applied, seen, intents>>
session  == <<issued, pending, unstable, token, down>>
history  == <<past, cause, floor, acked, hist>>
vars     == <<leader, replica, session, history>>

On(rule) == rule \notin Broken
Idle     == NoOp
View     == Len(openAt)
Max(a, b) == IF a > b THEN a ELSE b

Range(q)     == {q[i] : i \in DOMAIN q}
Prefix(q, n) == SubSeq(q, 1, n)
Comparable(a, b) == LET n == IF Len(a) < Len(b) THEN Len(a) ELSE Len(b) IN Prefix(a, n) = Prefix(b, n)

Ops(l)    == {l[i].w : i \in DOMAIN l} \ {NoOp}
Committed == Ops(Prefix(log, commit))
Alive(s)  == s \notin down
At(w)     == CHOOSE i \in DOMAIN log : log[i].w = w

\* The list at key k that the log l makes.
List(l, k) ==
  LET on(e) == e.w # NoOp /\ e.w.k = k
      some == SelectSeq(l, on)
  IN  [i \in DOMAIN some |-> some[i].w]

\* Writes of one session, in their order.
RECURSIVE InOrder(_)
InOrder(ws) ==
  IF ws = {} THEN <<>>
  ELSE LET least == CHOOSE w \in ws : \A u \in ws : w.n <= u.n IN <<least>> \o InOrder(ws \ {least})

\* l with those of the writes ws of one session that it lacks, by the leader of v.
With(l, ws, v) ==
  LET new == InOrder(ws \ Ops(l)) IN l \o [i \in DOMAIN new |-> [w |-> new[i], view |-> v]]

\* A leader appends the writes of a session without gaps.
NextOf(l, s) == Cardinality({w \in Ops(l) : w.s = s}) + 1

Newer(a, b) == IF a.view > b.view \/ (a.view = b.view /\ a.index > b.index) THEN a ELSE b

Init ==
  /\ log = <<>> /\ commit = 0 /\ openAt = <<0>> /\ fast = {}
  /\ applied  = [r \in Replicas |-> 0]
  /\ seen     = [r \in Replicas |-> 1]
  /\ intents  = [r \in Replicas |-> {}]
  /\ issued   = [s \in Sessions |-> 0]
  /\ pending  = [s \in Sessions |-> Idle]
  /\ unstable = [s \in Sessions |-> {}]
  /\ token    = [s \in Sessions |-> [view |-> 1, index |-> 0]]
  /\ down     = {}
  /\ past     = [s \in Sessions |-> {}]
  /\ cause    = <<>>
  /\ floor = {} /\ acked = {} /\ hist = {}

-----------------------------------------------------------------------------
(* What a session does and is told. *)

\* The session begins an operation: nothing goes on behind a strong write.
Begins(s, kind) ==
  /\ kind \in Kinds /\ Alive(s)
  /\ pending[s] = Idle \/ (kind = "weak write" /\ ~On("wait"))
  /\ issued[s] < MaxOps
  /\ issued' = [issued EXCEPT ![s] = @ + 1]

NewWrite(s, k) == [s |-> s, n |-> Cardinality({w \in past[s] : w.s = s}) + 1, k |-> k]

Made(s, w) == cause' = cause @@ (w :> past[s])

Event(s, k, w, strong, res) ==
  [s |-> s, i |-> issued[s] + 1, k |-> k, w |-> w, strong |-> strong, res |-> res,
   past |-> past[s], floor |-> IF strong THEN floor ELSE {}]

\* The client of e.s is told the result of e, with the token t.
Told(e, res, t) ==
  /\ token' = [token EXCEPT ![e.s] = Newer(t, @)]
  /\ past'  = [past EXCEPT ![e.s] = @ \cup ({e.w} \ {NoOp}) \cup Range(res) \cup UNION {cause[w] : w \in Range(res)}]
  /\ floor' = IF e.strong THEN floor \cup ({e.w} \ {NoOp}) \cup Range(res) ELSE floor
  /\ hist'  = hist \cup {[e EXCEPT !.res = res]}

\* A weak write is on its way to a replica. The client keeps it.
WeakWrite(s, k) ==
  LET w == NewWrite(s, k) IN
  /\ Begins(s, "weak write")
  /\ Made(s, w)
  /\ past' = [past EXCEPT ![s] = @ \cup {w}]
  /\ unstable' = [unstable EXCEPT ![s] = @ \cup {w}]
  /\ UNCHANGED <<leader, replica, pending, token, down, floor, acked, hist>>

\* The session hears which of its weak writes are committed, and up to where.
Stable(s) ==
  /\ unstable[s] \cap Committed # {}
  /\ unstable' = [unstable EXCEPT ![s] = @ \ Committed]
  /\ token' = IF On("stable token") THEN [token EXCEPT ![s] = Newer([view |-> View, index |-> commit], @)] ELSE token
  /\ UNCHANGED <<leader, replica, issued, pending, down, history>>

\* A replica has the write on its disk, behind all earlier ones of the session
\* that may still be needed, and acknowledges it.
Store(s, r, w) ==
  /\ "store" \in Kinds /\ r \notin down
  /\ w \in unstable[s] /\ \A a \in acked : a.w # w
  /\ w \notin Ops(Prefix(log, applied[r]))
  /\ On("fifo") => \A u \in unstable[s] : u.n < w.n => u \in intents[r] \cup Ops(Prefix(log, applied[r]))
  /\ intents' = [intents EXCEPT ![r] = @ \cup {w}]
  /\ acked'   = acked \cup {[w |-> w, at |-> r]}
  /\ UNCHANGED <<leader, applied, seen, session, past, cause, floor, hist>>

-----------------------------------------------------------------------------
(* The leader. *)

\* A weak write comes from a replica that holds it, or from its client.
Order(w) ==
  /\ w \notin Ops(log) /\ w.n = NextOf(log, w.s)
  /\ log' = Append(log, [w |-> w, view |-> View])
  /\ intents' = IF On("intents") THEN intents ELSE [r \in Replicas |-> intents[r] \ {w}]
  /\ UNCHANGED <<commit, openAt, fast, applied, seen, session, history>>

Bundle(s) == IF On("bundle") THEN unstable[s] ELSE {}

\* A strong write comes with its bundle. If nothing uncommitted of others
\* touches the keys of either, and all votes come in, its client is done, and
\* F+1 pools keep it. Otherwise it waits.
StrongWrite(s, k) ==
  LET w == NewWrite(s, k)
      b == Bundle(s)
      l == With(log, b, View)
      keys == {k} \cup (IF On("footprint") THEN {u.k : u \in b} ELSE {})
      free == \A i \in commit+1..Len(log) : log[i].w # NoOp /\ log[i].w.k \in keys => log[i].w \in b
      before == IF On("overlay") THEN l ELSE With(Prefix(log, commit), b, View)
  IN  /\ Begins(s, "strong write")
      /\ NextOf(l, s) = w.n \/ ~On("bundle")
      /\ log' = Append(l, [w |-> w, view |-> View])
      /\ Made(s, w)
      /\ \/ /\ free \/ ~On("overlay")
            /\ Told(Event(s, k, w, TRUE, <<>>), List(before, k), [view |-> View, index |-> Len(log')])
            /\ fast' = fast \cup {[w |-> w, bundle |-> b]}
            /\ UNCHANGED pending
         \/ /\ pending' = [pending EXCEPT ![s] = Event(s, k, w, TRUE, <<>>)]
            /\ past' = [past EXCEPT ![s] = @ \cup {w}]
            /\ UNCHANGED <<fast, token, floor, hist>>
      /\ UNCHANGED <<commit, openAt, replica, unstable, down, acked>>

\* The client sends it again to a new leader that does not know it.
Again(s) ==
  /\ pending[s] # Idle /\ pending[s].w \notin Ops(log)
  /\ NextOf(With(log, Bundle(s), View), s) = pending[s].w.n
  /\ log' = Append(With(log, Bundle(s), View), [w |-> pending[s].w, view |-> View])
  /\ UNCHANGED <<commit, openAt, fast, replica, session, history>>

FinishWrite(s) ==
  LET e == pending[s]
  IN  /\ e # Idle /\ e.w \in Committed
      /\ pending' = [pending EXCEPT ![s] = Idle]
      /\ Told(e, List(Prefix(log, At(e.w) - 1), e.k), [view |-> View, index |-> At(e.w)])
      /\ UNCHANGED <<leader, replica, issued, unstable, down, cause, acked>>

\* A strong read brings its session's weak writes, which the leader orders. It
\* is answered from what is committed, when these are and nothing else is under
\* way at its key.
StrongRead(s, k) ==
  /\ Begins(s, "strong read")
  /\ Bundle(s) \subseteq Committed
  /\ On("read waits") => \A i \in commit+1..Len(log) : log[i].w # NoOp => log[i].w.k # k
  /\ Told(Event(s, k, NoOp, TRUE, <<>>), List(Prefix(log, commit), k), [view |-> View, index |-> commit])
  /\ UNCHANGED <<leader, replica, pending, unstable, down, cause, acked>>

Commit ==
  /\ commit < Len(log)
  /\ commit' = commit + 1
  /\ fast' = {x \in fast : x.w # log[commit + 1].w}
  /\ UNCHANGED <<log, openAt, replica, session, history>>

-----------------------------------------------------------------------------
(* A change of leader. *)

\* l with the operations xs and their bundles behind it, in every order that
\* keeps each session's.
RECURSIVE Recoveries(_, _)
Recoveries(l, xs) ==
  LET missing == {x \in xs : x.w \notin Ops(l)}
      next == {x \in missing : \A y \in missing : y.w.s = x.w.s /\ On("session order") => y.w.n >= x.w.n}
  IN  IF missing = {} THEN {l}
      ELSE UNION { Recoveries(Append(With(l, x.bundle, View + 1), [w |-> x.w, view |-> View + 1]), missing \ {x}) : x \in next }

\* Operations may be in enough pools without being done. Each of them commutes
\* with the others there.
Touches(x)  == {x.w.k} \cup {w.k : w \in x.bundle}
MaybePooled ==
  { x \in {[w |-> pending[s].w, bundle |-> Bundle(s)] : s \in {s \in Sessions : pending[s] # Idle}} :
      \A f \in fast : Touches(x) \cap Touches(f) = {} }

\* It matters when something is not committed. The new leader keeps a part of
\* that, adds its first entry and what it recovers, commits all and opens.
Elect ==
  /\ View < MaxView /\ commit < Len(log)
  /\ \E n \in commit..Len(log) : \E more \in SUBSET MaybePooled :
       /\ \A x, y \in more : x # y => Touches(x) \cap Touches(y) = {}
       /\ \E l \in Recoveries(Append(Prefix(log, n), [w |-> NoOp, view |-> View + 1]),
                              IF On("recover") THEN fast \cup more ELSE {}) :
            log' = l /\ commit' = Len(l) /\ openAt' = Append(openAt, Len(l))
  /\ fast' = {}
  /\ UNCHANGED <<replica, session, history>>

-----------------------------------------------------------------------------
(* Replicas. *)

\* A replica applies what is committed, and needs no intents of that any more.
Apply(r) ==
  \E n \in applied[r]+1..commit :
    /\ applied' = [applied EXCEPT ![r] = n]
    /\ intents' = [intents EXCEPT ![r] = @ \ Ops(Prefix(log, n))]
    /\ UNCHANGED <<leader, seen, session, history>>

NewView(r) ==
  /\ seen[r] < View
  /\ seen' = [seen EXCEPT ![r] = View]
  /\ UNCHANGED <<leader, applied, intents, session, history>>

\* The view of what a replica has applied: it may have entries of a view that
\* nobody has told it to be open.
ViewOf(r) ==
  IF On("entry view") /\ applied[r] > 0 THEN Max(seen[r], log[applied[r]].view) ELSE seen[r]

\* The replica is not behind the token t.
Reached(r, t) ==
  \/ t.view = ViewOf(r) /\ applied[r] >= t.index
  \/ t.view < ViewOf(r) /\ seen[r] = ViewOf(r) /\ applied[r] >= Max(openAt[seen[r]], t.index)
  \/ ~On("token view") /\ applied[r] >= t.index
  \/ ~On("token")

\* What the replica has applied, and over it what the session still keeps.
WeakRead(s, k, r) ==
  LET l == Prefix(log, applied[r])
      own == {w \in unstable[s] : w.k = k} \ Ops(l)
      others == IF On("private") THEN {} ELSE {w \in UNION {unstable[q] : q \in Sessions \ {s}} : w.k = k} \ Ops(l)
      res == List(l, k) \o InOrder(others) \o (IF On("overlay of reads") THEN InOrder(own) ELSE <<>>)
  IN  /\ Begins(s, "weak read")
      /\ Reached(r, token[s])
      /\ Told(Event(s, k, NoOp, FALSE, <<>>), res, [view |-> ViewOf(r), index |-> applied[r]])
      /\ UNCHANGED <<leader, replica, pending, unstable, down, cause, acked>>

Die(s) ==
  /\ Cardinality(down) < MaxFaults /\ Alive(s)
  /\ down'     = down \cup {s}
  /\ unstable' = [unstable EXCEPT ![s] = {}]
  /\ pending'  = [pending EXCEPT ![s] = Idle]
  /\ UNCHANGED <<leader, replica, issued, token, history>>

LoseDisk(r) ==
  /\ Cardinality(down) < MaxFaults /\ r \notin down
  /\ down'    = down \cup {r}
  /\ intents' = [intents EXCEPT ![r] = {}]
  /\ UNCHANGED <<leader, applied, seen, issued, pending, unstable, token, history>>

Next ==
  \/ \E s \in Sessions :
       \/ \E k \in Keys : WeakWrite(s, k) \/ StrongWrite(s, k) \/ StrongRead(s, k) \/ \E r \in Replicas : WeakRead(s, k, r)
       \/ \E w \in unstable[s] : Order(w) \/ \E r \in Replicas : Store(s, r, w)
       \/ Stable(s) \/ Again(s) \/ FinishWrite(s) \/ Die(s)
  \/ \E r \in Replicas : Apply(r) \/ NewView(r) \/ LoseDisk(r) \/ \E w \in intents[r] : Order(w)
  \/ Commit \/ Elect

Spec == Init /\ [][Next]_vars

Symmetry == Permutations(Sessions) \cup Permutations(Keys) \cup Permutations(Replicas)

-----------------------------------------------------------------------------
(* What clients may rely on. *)

Strong    == {e \in hist : e.strong}
Sees(e)   == Range(e.res)
Known(e)  == {w \in e.past : w.k = e.k}        \* at the key, before the operation began
Own(e)    == {w \in Known(e) : w.s = e.s}

\* C1: a strong operation sees the weak writes that its session made before.
C1 == \A e \in Strong : Own(e) \subseteq Sees(e)

\* C2: when a strong operation is done, its session's earlier weak writes
\* outlive every change of leader, no matter which replica dies.
C2 == \A e \in Strong : {w \in e.past : w.s = e.s} \subseteq Ops(log)

\* C3: nobody sees a write of another session before it is committed.
C3 == \A e \in hist : \A w \in Sees(e) : w.s = e.s \/ w \in Committed

\* Strong operations are linearizable: one order at each key, with which all
\* results agree, and which keeps to real time.
State(e)  == IF e.w = NoOp THEN e.res ELSE Append(e.res, e.w)
OneOrder  == \A e, f \in Strong : e.k = f.k => Comparable(State(e), State(f))
RealTime  == \A e \in Strong : {w \in e.floor : w.k = e.k} \subseteq Sees(e)

\* A finished strong write stays, and so does its result.
ResultsStand ==
  \A e \in Strong : e.w # NoOp => e.w \in Ops(log) /\ e.res = List(Prefix(log, At(e.w) - 1), e.k)

\* A session sees what it wrote, and what it saw it sees again.
ReadYourWrites == \A e \in hist : Own(e) \subseteq Sees(e)
MonotonicReads == \A e, f \in hist : e.s = f.s /\ e.k = f.k /\ e.i < f.i => Sees(e) \subseteq Sees(f)

\* And more: it sees all that came before anything that it saw or wrote.
Causal == \A e \in hist : Known(e) \subseteq Sees(e)

\* What others wrote it sees in the order of the log.
InLogOrder ==
  \A e \in hist : \E n \in 0..commit :
    LET l == List(Prefix(log, n), e.k) IN
    /\ Len(l) <= Len(e.res) /\ l = Prefix(e.res, Len(l))
    /\ \A i \in Len(l)+1..Len(e.res) : e.res[i].s = e.s

\* The log never puts a write before one that it came after.
OrderKeepsCause ==
  \A i, j \in DOMAIN log : i < j /\ log[i].w # NoOp /\ log[j].w # NoOp => log[j].w \notin cause[log[i].w]

\* Each write is in the log once, behind all of its session before it.
SessionOrder ==
  \A i \in DOMAIN log : log[i].w # NoOp => log[i].w.n = NextOf(Prefix(log, i - 1), log[i].w.s)

\* An acknowledged weak write is committed or kept, by its client and by the
\* disk that it was acknowledged from, as long as these live; and from that
\* disk alone the leader can take it: nothing before it is missing.
NothingLost ==
  \A a \in acked : a.w \notin Committed =>
    /\ Alive(a.w.s) => a.w \in unstable[a.w.s]
    /\ a.at \notin down => a.w \in intents[a.at]
    /\ a.at \notin down /\ ~Alive(a.w.s) =>
         \A n \in 1..a.w.n - 1 : \E u \in Committed \cup intents[a.at] \cup UNION {{x.w} \cup x.bundle : x \in fast} :
           u.s = a.w.s /\ u.n = n
=============================================================================
