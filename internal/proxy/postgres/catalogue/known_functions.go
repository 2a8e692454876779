package catalogue

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// This file says what functions do that the catalogue cannot show: those of the
// server itself and those in C.

// vettedExtensions are extensions whose functions in C compute from their
// arguments, or read and reset statistics: none but those of vettedFunctions changes
// a setting, takes a lock that outlives the statement, or runs SQL that it is given.
// Their functions in SQL and PL/pgSQL are read like any other's. Not here, because
// they run texts, hold connections or keep something in the session: dblink, tablefunc
// (crosstab, connectby), xml2 (xpath_table), postgres_fdw, hypopg (indexes of the
// session), pldbgapi, pg_background, pg_cron, plv8 and their kin.
var vettedExtensions = strings.Fields(`
	address_standardizer amcheck autoinc bloom btree_gin btree_gist citext cube
	dict_int dict_xsyn earthdistance fuzzystrmatch h3 hll hstore insert_username
	intarray isn lo ltree moddatetime pageinspect pg_buffercache pg_freespacemap
	pg_hashids pg_prewarm pg_stat_kcache pg_stat_statements pg_trgm pg_uuidv7
	pg_visibility pg_walinspect pgcrypto pgrowlocks pgstattuple postgis
	postgis_raster postgis_sfcgal prefix refint rum seg semver sslinfo
	tcn tsm_system_rows tsm_system_time unaccent unit uuid-ossp vector`)

// vettedFunctions are the functions in C of vettedExtensions that do more.
var vettedFunctions = func() map[string]sqlscan.Effect {
	m := make(map[string]sqlscan.Effect)
	for names, e := range map[string]sqlscan.Effect{
		// State of the session that the server does not show: isn's weak mode, the
		// defaults of hll, the units that were read from their tables.
		"isn_weak hll_set_defaults hll_set_max_sparse hll_set_output_version unit_reset": sqlscan.EffUnknownFunc,
		// SQL, functions and tables that their arguments name: those of the raster
		// algebra, refint's cascades, the lookup tables of addresses, and the
		// temporary table of PostGIS' long locks.
		`_st_mapalgebra st_mapalgebra st_mapalgebraexpr st_mapalgebrafct st_mapalgebrafctngb
		check_primary_key check_foreign_key standardize_address checkauthtrigger`: sqlscan.EffUnknownFunc,
		"autoinc": sqlscan.EffSequence, // nextval of its argument
		// They write, or take long locks, but leave the session as it is.
		`autoprewarm_dump_now autoprewarm_start_worker bt_index_check bt_index_parent_check
		gin_index_check pg_buffercache_evict pg_buffercache_evict_all pg_buffercache_evict_relation
		pg_buffercache_mark_dirty pg_buffercache_mark_dirty_all pg_buffercache_mark_dirty_relation
		pg_prewarm pg_stat_kcache_reset pg_stat_statements_reset pg_truncate_visibility_map
		verify_heapam`: sqlscan.EffRoutine,
	} {
		for name := range strings.FieldsSeq(names) {
			m[name] = e
		}
	}
	return m
}()

// vettedSettings are the settings that a function in C of a vetted extension changes
// for its session.
var vettedSettings = map[string]string{"set_limit": "pg_trgm.similarity_threshold"}

// aloneBuiltins are functions of pg_catalog that leave the session as it is when
// their transaction has ended, but write, notify, signal, wait for other sessions or
// look at the server as a whole: they run alone, once, and pin nothing.
var aloneBuiltins = strings.Fields(`
	pg_advisory_xact_lock pg_advisory_xact_lock_shared pg_notify
	pg_try_advisory_xact_lock pg_try_advisory_xact_lock_shared
	amvalidate currtid2 lo_close lo_creat lo_create lo_export lo_from_bytea lo_get
	lo_import lo_lseek lo_lseek64 lo_open lo_put lo_tell lo_tell64 lo_truncate
	lo_truncate64 lo_unlink loread lowrite pg_cancel_backend pg_config
	pg_control_checkpoint pg_control_init pg_control_recovery pg_control_system
	pg_create_restore_point pg_current_logfile pg_drop_replication_slot
	pg_export_snapshot pg_extension_config_dump pg_get_multixact_members
	pg_get_shmem_allocations pg_get_wal_replay_pause_state
	pg_get_wal_resource_managers pg_hba_file_rules pg_ident_file_mappings
	pg_import_system_collations pg_isolation_test_session_is_blocked
	pg_jit_available pg_log_backend_memory_contexts pg_logical_emit_message
	pg_ls_archive_statusdir pg_ls_dir pg_ls_logdir pg_ls_logicalmapdir
	pg_ls_logicalsnapdir pg_ls_replslotdir pg_ls_tmpdir pg_ls_waldir
	pg_prepared_xact pg_promote pg_read_binary_file pg_read_file pg_read_file_old
	pg_reload_conf pg_replication_origin_advance pg_replication_origin_create
	pg_replication_origin_drop pg_replication_origin_progress
	pg_replication_slot_advance pg_rotate_logfile pg_rotate_logfile_old
	pg_sequence_last_value pg_show_all_file_settings
	pg_show_replication_origin_status pg_stat_clear_snapshot pg_stat_file
	pg_stat_force_next_flush pg_stat_get_recovery_prefetch
	pg_stat_get_wal_receiver pg_stat_get_xact_blocks_fetched
	pg_stat_get_xact_blocks_hit pg_stat_get_xact_function_calls
	pg_stat_get_xact_function_self_time pg_stat_get_xact_function_total_time
	pg_stat_get_xact_tuples_hot_updated pg_stat_have_stats pg_stat_reset
	pg_stat_reset_replication_slot pg_stat_reset_shared
	pg_stat_reset_single_function_counters pg_stat_reset_single_table_counters
	pg_stat_reset_slru pg_stat_reset_subscription_stats pg_switch_wal
	pg_terminate_backend pg_wal_replay_pause pg_wal_replay_resume
	pg_xact_commit_timestamp_origin`)

// backupBuiltins put the session into backup mode, and out of it.
var backupBuiltins = []string{"pg_backup_start", "pg_backup_stop", "pg_start_backup", "pg_stop_backup"}

// byString are functions that the text scanner takes for harmless and that may
// run what their arguments name: the input of a type by its number or name, the
// hash functions of a table's key.
var byString = strings.Fields(`
	array_in array_recv domain_in domain_recv multirange_in multirange_recv
	pg_input_error_info pg_input_is_valid range_in range_recv record_in record_recv
	satisfies_hash_partition`)

// builtinEffects returns what calling a function of pg_catalog may do to the
// session and how it may run; 0 if nothing needs to be known of it.
func builtinEffects(name string) sqlscan.Effect {
	switch {
	case slices.Contains(byString, name):
		return sqlscan.EffUnknownFunc
	case slices.Contains(backupBuiltins, name):
		return sqlscan.EffBackup
	case name == "current_setting":
		return 0 // of tracked settings it is the client's own value anywhere; see appNameRead
	}
	e, harmless := sqlscan.HarmlessFunction(name)
	if (harmless || e == sqlscan.EffUnknownFunc) && slices.Contains(aloneBuiltins, name) {
		return sqlscan.EffRoutine
	}
	if harmless {
		return 0
	}
	return e &^ sqlscan.EffRelease
}
