-------------------------------- MODULE Trace --------------------------------
(***************************************************************************)
(* Is a recorded run a behaviour of Recovery?                              *)
(*                                                                         *)
(* Steps is what could be noticed of a run, in its order: votes, results   *)
(* told before the commit, answers to new leaders, what they recovered,    *)
(* views that open.  Each must be a step of Recovery; between them are any *)
(* number of steps that nobody notices.  Only a few operations of the run  *)
(* are looked at: Recovery has no step in which one of them needs another  *)
(* that is left out.                                                       *)
(*                                                                         *)
(* TLC looks for a state in which all steps are taken, so the run is a     *)
(* behaviour of Recovery when the invariant NotAll fails.                  *)
(***************************************************************************)
EXTENDS Recovery

CONSTANT Steps   \* sequence of [do, r, v, x]

VARIABLE at      \* the step that comes next

Chief(v) == LET i == CHOOSE i \in DOMAIN Steps : Steps[i].do = "lead" /\ Steps[i].v = v IN Steps[i].r

Noticed(s) ==
  CASE s.do = "vote"    -> Record(s.v, s.r, s.x) \/ (Applied(s.r, s.x) /\ UNCHANGED vars)
    [] s.do = "spec"    -> Leader(s.v) = s.r /\ Strong(s.v, s.x) /\ pool'[s.r][s.x] = s.v
    [] s.do = "answer"  -> Answer(s.v, s.r) \/ Move(s.v, s.r) \/ (view[s.r] = s.v /\ UNCHANGED vars)
    [] s.do = "recover" -> /\ led[s.v].stage = "recovered" /\ Leader(s.v) = s.r
                           /\ Has(log[s.r], s.x) /\ UNCHANGED vars
    [] s.do = "open"    -> Leader(s.v) = s.r /\ Open(s.v)
    [] s.do = "follow"  -> NewView(s.r, s.v) \/ (view[s.r] = s.v /\ UNCHANGED vars)
    [] s.do = "lead"    -> UNCHANGED vars

\* Steps that leave no trace. A leader takes operations, loses office before it
\* can tell their results, replicates and commits; a change of leader shows in
\* its effects. A leader recovers what the trace says, neither more nor less.
Hidden ==
  \/ \E r \in Replicas, q \in Quorums :
       /\ Elect(r, q)
       /\ \A t \in Views : led'[t].by # led[t].by => r = Chief(t)
  \/ \E t \in Views :
       \/ Commit(t)
       \/ Recover(t) /\ Recovered(t) = {Steps[i].x : i \in {i \in DOMAIN Steps : Steps[i].do = "recover" /\ Steps[i].v = t}}
       \/ InOffice(t) /\ Answer(t, Leader(t))
       \/ \E r \in Replicas : Replicate(t, r)
       \/ \E x \in Ops : Strong(t, x)

TraceNext ==
  \/ at <= Len(Steps) /\ Noticed(Steps[at]) /\ at' = at + 1
  \/ at <= Len(Steps) /\ Hidden /\ at' = at

TraceSpec == Init /\ at = 1 /\ [][TraceNext]_<<vars, at>>

NotAll == at <= Len(Steps)
==============================================================================
