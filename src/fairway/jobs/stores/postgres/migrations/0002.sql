-- Jobs count how often they were retried by hand, and lanes may be for those who know a kind.

alter table fw.job add column retries int not null default 0;
alter table fw.history add column retries int not null default 0;

alter table fw.lane add column skill text not null default '';
alter table fw.lane drop constraint lane_queue_tenant_band_key;
alter table fw.lane add unique (queue, tenant, band, skill);
