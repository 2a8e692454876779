package myscan

import "strings"

// Names of built-in functions that neither change a session nor read its state, by the servers
// that have them. They are from the manuals of MySQL 5.7 to 9.7 and MariaDB 10.4 to 11.8; the
// tests check them against live servers.
//
// A function that only some servers have may be anything on the others, where users write their
// own substitutes: it counts only if the server is known. For that reason these lists omit
// functions that came late and that users have long written themselves: to_date, to_number,
// trunc, uuid_v7, ...
//
// Functions that affect the session are specialFunctions in words.go.

// harmlessEverywhere are functions of all servers.
const harmlessEverywhere = `
abs acos adddate addtime aes_decrypt aes_encrypt ascii asin atan atan2 avg bin bit_and bit_count bit_length bit_or
bit_xor cast ceil ceiling char character_length char_length charset coalesce coercibility collation compress concat
concat_ws conv convert convert_tz cos cot count crc32 curdate current_date current_time current_timestamp
current_user curtime database date date_add date_format date_sub datediff day dayname dayofmonth dayofweek dayofyear
default degrees elt exp export_set extract extractvalue field find_in_set floor format from_base64 from_days
from_unixtime get_format greatest group_concat hex hour if ifnull inet6_aton inet6_ntoa inet_aton inet_ntoa insert
instr interval is_free_lock is_ipv4 is_ipv4_compat is_ipv4_mapped is_ipv6 isnull json_array json_array_append
json_array_insert json_arrayagg json_contains json_contains_path json_depth json_extract json_insert json_keys
json_length json_merge json_merge_patch json_merge_preserve json_object json_objectagg json_pretty json_quote
json_remove json_replace json_search json_set json_type json_unquote json_valid last_day lcase least left length ln
load_file localtime localtimestamp locate log log10 log2 lower lpad ltrim make_set makedate maketime max md5
microsecond mid min minute mod month monthname name_const now nullif oct octet_length ord period_add period_diff pi
point position pow power quarter quote radians rand repeat replace reverse right round row rpad rtrim schema sec_to_time
second session_user sha sha1 sha2 sign sin soundex space sqrt st_area st_asbinary st_astext st_aswkb st_aswkt
st_buffer st_centroid st_contains st_convexhull st_crosses st_difference st_dimension st_disjoint st_distance
st_endpoint st_envelope st_equals st_exteriorring st_geomcollfromtext st_geomcollfromwkb
st_geometrycollectionfromtext st_geometrycollectionfromwkb st_geometryfromtext st_geometryfromwkb st_geometryn
st_geometrytype st_geomfromtext st_geomfromwkb st_interiorringn st_intersection st_intersects st_isclosed st_isempty
st_issimple st_length st_linefromtext st_linefromwkb st_linestringfromtext st_linestringfromwkb st_numgeometries
st_numinteriorrings st_numpoints st_overlaps st_pointfromtext st_pointfromwkb st_pointn st_polyfromtext
st_polyfromwkb st_polygonfromtext st_polygonfromwkb st_srid st_startpoint st_symdifference st_touches st_union
st_within st_x st_y std stddev stddev_pop stddev_samp str_to_date strcmp subdate substr substring substring_index
subtime sum sysdate system_user tan time time_format time_to_sec timediff timestamp timestampadd timestampdiff to_base64
to_days to_seconds trim truncate ucase uncompress uncompressed_length unhex unix_timestamp updatexml upper user uuid
uuid_short utc_date utc_time utc_timestamp values var_pop var_samp variance version week weekday weekofyear weight_string year
yearweek geometrycollection linestring multilinestring multipoint multipolygon polygon mbrcontains mbrdisjoint
mbrintersects mbroverlaps mbrtouches mbrwithin`

// harmlessNewer are functions of MariaDB and of MySQL 8.0 and newer.
const harmlessNewer = `
cume_dist current_role dense_rank first_value json_overlaps json_table json_value lag last_value lead mbrequals
nth_value ntile percent_rank random_bytes rank regexp_instr regexp_replace regexp_substr row_number st_asgeojson
st_distance_sphere st_geomfromgeojson`

// harmlessMySQL are functions of MySQL 8.0 and newer only.
const harmlessMySQL = `
any_value bin_to_uuid format_bytes format_pico_time from_vector geomcollection grouping gtid_subset gtid_subtract
icu_version is_uuid json_schema_valid json_schema_validation_report json_storage_free json_storage_size
mbrcoveredby mbrcovers ps_thread_id regexp_like roles_graphml st_buffer_strategy st_collect st_frechetdistance
st_geohash st_geomcollfromtxt st_hausdorffdistance st_isvalid st_latfromgeohash st_latitude st_lineinterpolatepoint
st_lineinterpolatepoints st_longfromgeohash st_longitude st_makeenvelope st_mlinefromtext st_mlinefromwkb
st_mpointfromtext st_mpointfromwkb st_mpolyfromtext st_mpolyfromwkb st_multilinestringfromtext
st_multilinestringfromwkb st_multipointfromtext st_multipointfromwkb st_multipolygonfromtext st_multipolygonfromwkb
st_numinteriorring st_pointatdistance st_pointfromgeohash st_simplify st_swapxy st_transform st_validate
statement_digest statement_digest_text string_to_vector to_vector uuid_to_bin validate_password_strength vector_dim
vector_to_string`

// harmlessMariaDB are functions of MariaDB only.
const harmlessMariaDB = `
area asbinary astext aswkb aswkt binlog_gtid_pos boundary centroid chr column_add column_check column_create
column_delete column_exists column_get column_json column_list concat_operator_oracle contains convexhull crc32c
crosses decode decode_histogram decode_oracle des_decrypt des_encrypt dimension disjoint encode encrypt endpoint
envelope equals exteriorring geomcollfromtext geomcollfromwkb geometrycollectionfromtext geometrycollectionfromwkb
geometryfromtext geometryfromwkb geometryn geometrytype geomfromtext geomfromwkb glength interiorringn intersects
isclosed isempty isring issimple json_array_intersect json_compact json_detailed json_equals json_exists
json_key_value json_loose json_normalize json_object_filter_keys json_object_to_array json_query lengthb
linefromtext linefromwkb linestringfromtext linestringfromwkb lpad_oracle ltrim_oracle mbrequal median
mlinefromtext mlinefromwkb mpointfromtext mpointfromwkb mpolyfromtext mpolyfromwkb multilinestringfromtext
multilinestringfromwkb multipointfromtext multipointfromwkb multipolygonfromtext multipolygonfromwkb
natural_sort_key numgeometries numinteriorrings numpoints nvl nvl2 old_password overlaps password percentile_cont
percentile_disc pointfromtext pointfromwkb pointn pointonsurface polyfromtext polyfromwkb polygonfromtext
polygonfromwkb replace_oracle rownum rpad_oracle rtrim_oracle schemas sformat srid st_boundary st_isring
st_pointonsurface st_relate startpoint substr_oracle sys_guid touches trim_oracle vec_distance vec_distance_cosine
vec_distance_euclidean vec_fromtext vec_totext within`

// harmlessLate are the functions of the lists above that came with MariaDB 11 and MySQL 9.
const harmlessLate = `
from_vector json_array_intersect json_key_value json_object_filter_keys json_object_to_array string_to_vector
to_vector vec_distance vec_distance_cosine vec_distance_euclidean vec_fromtext vec_totext vector_dim vector_to_string`

// lateNames are functions that the lists above omit because they came late and users have long
// written their own. If the catalog has no routine of the name, it is the server's.
var lateNames = func() map[string]bool {
	m := make(map[string]bool)
	for name := range strings.FieldsSeq(harmlessLate + ` add_months format_bytes format_pico_time json_schema_valid kdf months_between
		to_char to_date to_number trunc uuid_v4 uuid_v7`) {
		m[name] = true
	}
	return m
}()

// volatileNames are functions of these lists whose values in two rows of one statement depend
// on each other or on the row's position, or are random.
const volatileNames = `encrypt rand random_bytes rownum sys_guid sysdate uuid uuid_short`

// tightNames are functions only if "(" follows immediately. With white space before it they are
// stored functions of the same name, unless sql_mode has IGNORE_SPACE.
const tightNames = `
adddate bit_and bit_or bit_xor cast count cume_dist curdate curtime date_add date_sub dense_rank extract first_value
group_concat json_arrayagg json_objectagg lag lead max median mid min now nth_value ntile percent_rank
percentile_cont percentile_disc position rank row_number session_user st_collect std stddev stddev_pop stddev_samp
subdate substr substring sum sysdate system_user trim trim_oracle var_pop var_samp variance`

// grammarWords may precede "(" without being functions. They are reserved, or keywords that the
// servers do not accept as names of functions.
const grammarWords = `
against all analyze and any as between binary both by case check collate column columns constraint cross cube datetime
decimal desc describe distinct distinctrow div do double dual else elseif escape except exists explain float for force
foreign from fulltext group having high_priority ignore in index inner intersect into is join key leading
like limit match natural nchar not null numeric of on or order outer over partition primary procedure
real references regexp return returning rlike select separator signed some spatial sql_big_result
sql_buffer_result sql_calc_found_rows sql_no_cache sql_small_result straight_join table then to trailing
union unique unsigned use using value varbinary varchar when where while window with xor`

// expressionWords may stand in the row of an INSERT: all servers reserve them, so they are no
// columns.
const expressionWords = `
and between binary case char character collate decimal div double else float in integer interval is like mod not null or
precision regexp rlike set then unsigned using when xor current_date current_time current_timestamp current_user
localtime localtimestamp utc_date utc_time utc_timestamp true false as`
