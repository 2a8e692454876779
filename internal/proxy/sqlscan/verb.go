package sqlscan

// Verb names the command of a statement. It is a coarse class: what weir must
// know to route a statement, not the server's command tag.
type Verb uint8

// The verbs. One that covers several commands says which.
const (
	VerbEmpty            Verb = iota // nothing but white space, comments and semicolons
	VerbSelect                       // SELECT, also in parentheses or behind WITH
	VerbValues                       // VALUES (...)
	VerbTable                        // TABLE name
	VerbInsert                       // INSERT
	VerbUpdate                       // UPDATE
	VerbDelete                       // DELETE
	VerbMerge                        // MERGE
	VerbBegin                        // BEGIN, START TRANSACTION
	VerbCommit                       // COMMIT, END
	VerbRollback                     // ROLLBACK, ABORT
	VerbSavepoint                    // SAVEPOINT
	VerbRelease                      // RELEASE [SAVEPOINT]
	VerbRollbackTo                   // ROLLBACK TO [SAVEPOINT]
	VerbPrepareTx                    // PREPARE TRANSACTION
	VerbCommitPrepared               // COMMIT PREPARED
	VerbRollbackPrepared             // ROLLBACK PREPARED
	VerbSet                          // SET in all its forms
	VerbReset                        // RESET
	VerbShow                         // SHOW
	VerbCopy                         // COPY
	VerbListen                       // LISTEN
	VerbUnlisten                     // UNLISTEN
	VerbNotify                       // NOTIFY
	VerbPrepare                      // PREPARE name AS
	VerbExecute                      // EXECUTE name
	VerbDeallocate                   // DEALLOCATE
	VerbDiscard                      // DISCARD
	VerbDeclare                      // DECLARE name CURSOR
	VerbFetch                        // FETCH
	VerbMove                         // MOVE
	VerbClose                        // CLOSE
	VerbLock                         // LOCK [TABLE]
	VerbExplain                      // EXPLAIN; its effects are those of the explained statement
	VerbDo                           // DO
	VerbCall                         // CALL
	VerbDDL                          // CREATE, ALTER, DROP, TRUNCATE, COMMENT, GRANT, REVOKE, SECURITY LABEL, REASSIGN, IMPORT, REFRESH
	VerbVacuum                       // VACUUM, ANALYZE, CLUSTER, REINDEX, CHECKPOINT: they refuse a transaction or do badly in one
	VerbLoad                         // LOAD
	VerbOther                        // none of the above; always comes with EffUnknown

	verbCount
)

var verbNames = [verbCount]string{
	VerbEmpty: "EMPTY", VerbSelect: "SELECT", VerbValues: "VALUES", VerbTable: "TABLE",
	VerbInsert: "INSERT", VerbUpdate: "UPDATE", VerbDelete: "DELETE", VerbMerge: "MERGE",
	VerbBegin: "BEGIN", VerbCommit: "COMMIT", VerbRollback: "ROLLBACK",
	VerbSavepoint: "SAVEPOINT", VerbRelease: "RELEASE", VerbRollbackTo: "ROLLBACK TO",
	VerbPrepareTx: "PREPARE TRANSACTION", VerbCommitPrepared: "COMMIT PREPARED",
	VerbRollbackPrepared: "ROLLBACK PREPARED", VerbSet: "SET", VerbReset: "RESET",
	VerbShow: "SHOW", VerbCopy: "COPY", VerbListen: "LISTEN", VerbUnlisten: "UNLISTEN",
	VerbNotify: "NOTIFY", VerbPrepare: "PREPARE", VerbExecute: "EXECUTE",
	VerbDeallocate: "DEALLOCATE", VerbDiscard: "DISCARD", VerbDeclare: "DECLARE",
	VerbFetch: "FETCH", VerbMove: "MOVE", VerbClose: "CLOSE", VerbLock: "LOCK",
	VerbExplain: "EXPLAIN", VerbDo: "DO", VerbCall: "CALL", VerbDDL: "DDL",
	VerbVacuum: "VACUUM", VerbLoad: "LOAD", VerbOther: "OTHER",
}

// String returns the verb in capitals, for instance "ROLLBACK TO".
func (v Verb) String() string {
	if v < verbCount {
		return verbNames[v]
	}
	return "INVALID"
}
